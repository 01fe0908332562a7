"""`same_loss` decides which functions are one loss of a step, and which are several."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from gradscope.errors import UsageError
from gradscope.naming import printable


def same_loss(before: Callable[..., Any] | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, of which a step may have called another closure before, to accumulate gradients.

    Args:
        before: What the step differentiated before; None for nothing.
        function: What it differentiates now.

    Raises:
        UsageError: It is another loss. A mean of both is the loss of neither.
    """
    one, other = (None if each is None else _code(each) for each in (before, function))
    if one is not None and other is not None and one is not other:
        names = " and ".join(printable(getattr(each, "co_name", "")) for each in (one, other))
        raise UsageError(
            f"the step differentiates several losses, {names}, and a probe records one",
            hint="call jax.value_and_grad for the others; to record them, too, return the seen of gs.value_and_grad, "
            "and hand it to the write(step, seen) of a probe of its own",
        )
    return function


def _code(function: Callable[..., Any]) -> Any:
    """Returns the code of a function, which the closures that a loop makes anew share; None where it has none."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return getattr(inner, "__code__", None)
