"""Module scopes: names for modules of frameworks that open none, by the attribute path from the outermost module.

A module's scope is relative to the module that calls it. One that is called from elsewhere than from inside its owner,
as tied weights are, is named by its path from the outermost module: `Net/decoder/encoder/embed`. A module that calls
itself, or the `__call__` of its base class, opens nothing new.

The module being called is remembered per thread: modules may be built in one while a loss is traced in another.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import jax

#: The path of the module whose call is being traced.
_CALLED: Final[ContextVar[tuple[str, ...]]] = ContextVar("called", default=())


@contextmanager
def module_scope(path: str) -> Generator[None]:
    """Open the scope of a module for the length of its call.

    Args:
        path: Attribute names joined by `/`, the class of the outermost module first: `Net/blocks/0/conv`.
    """
    parts = tuple(path.split("/"))
    around = _CALLED.get()
    if parts == around:
        yield
        return
    inside = parts[len(around) :] if parts[: len(around)] == around else parts[1:]
    token = _CALLED.set(parts)
    try:
        with jax.named_scope("/".join(inside or parts)):
            yield
    finally:
        _CALLED.reset(token)
