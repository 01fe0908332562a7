"""Maxima and minima over axes are differentiated at values that are in memory.

JAX's derivative of a maximum hands the cotangent to the elements that equal it, so it compares the operand with the
result. On the CPU XLA computes an operand again in each loop that reads it, and contracts other multiplications and
additions to one rounding there. Then the elements that made the maximum may not equal it, and their cotangents are
lost. `jax.lax.optimization_barrier` does not prevent that (jaxlib 0.10); the operand of a branch is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.jaxcompat import Equation, traced_as
from gradscope.tracing.jaxpr.sharding import in_whole

_PRIMITIVES: Final = frozenset({"reduce_max", "reduce_min"})

#: Different extrema that are remembered: JAX takes two milliseconds to make a rule.
_MOST: Final = 256


def is_extremum(equation: Equation) -> bool:
    """Returns whether an equation reduces its operand to maxima or minima, and has a derivative."""
    return equation.primitive.name in _PRIMITIVES and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.inexact)


def run_extremum(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """Returns the output of an extremum, as `jaxcompat.bind` does, with the derivative at a value in memory."""
    function = _function(equation.primitive, tuple(sorted(equation.params.items())))
    with traced_as(equation):
        return [function(*values)]


def in_memory(value: Any) -> Any:
    """Returns an array that all that read it find equal."""
    return jax.lax.platform_dependent(value, cpu=_branch_operand, default=lambda value: value) if value.size else value


def _branch_operand(value: Any) -> Any:
    first = in_whole(lambda value: value.ravel()[0])(value)
    # It never holds, which XLA does not know.
    return jax.lax.cond((first > 1) & (first < 0), jnp.negative, lambda value: value, value)


@lru_cache(maxsize=_MOST, typed=True)
def _function(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
    reduced = partial(primitive.bind, **dict(params))
    extremum = jax.custom_jvp(reduced)

    @extremum.defjvp
    def derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        # Nothing of this is run where the derivative is not used, as in a softmax.
        _, tangent = jax.jvp(reduced, (in_memory(*primals),), tangents)
        return extremum(*primals), tangent

    return extremum
