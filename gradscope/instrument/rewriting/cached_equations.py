"""Runs equations through `jax.jit`, so that what JAX works out about one of them serves all that are alike.

JAX differentiates a primitive by tracing its rule, each time anew; that is most of the time in which the program of a
deep network is traced. It remembers the derivative of a jitted function. So an equation runs in a function of its
primitive and its parameters, which JAX inlines: the program is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
from jax.core import Tracer

from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, kind_of, traced_as

#: Different equations that are remembered. A model of hundreds of layers has some dozens.
_MOST = 1024


def run_cached(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """Returns the outputs of an equation, as `jaxcompat.bind` does.

    Args:
        equation: The equation.
        values: The values of its operands.
    """
    if kind_of(equation) is not None or equation.effects or not _is_traced(values):
        return bind(equation, values)
    try:
        function = _function(equation.primitive, tuple(sorted(equation.params.items())))
    except TypeError:  # a parameter cannot be hashed
        return bind(equation, values)
    with traced_as(equation):
        return list(function(*values))


def _is_traced(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tracer) for value in values)


@lru_cache(maxsize=_MOST, typed=True)
def _function(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Callable[..., Sequence[Any]]:
    def run(*values: Any) -> Sequence[Any]:
        made = primitive.bind(*values, **dict(params))
        return made if primitive.multiple_results else (made,)

    return jax.jit(run, inline=True)
