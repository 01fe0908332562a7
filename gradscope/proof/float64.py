"""Float64 computation runs a model at the numbers that it has in its own precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.dtypes import dtype_name
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import Frame, source_in
from gradscope.tracing.jaxpr.jaxcompat import Equation, Jaxpr, sub_jaxprs

_WIDE: Final = float(np.finfo(np.float64).eps)
_SINGLE: Final = float(np.finfo(np.float32).eps)
#: The types of `precision` by which a product states its algorithm.
_ALGORITHMS: Final = ("DotAlgorithm", "DotAlgorithmPreset")


def wide_types() -> AbstractContextManager[None]:
    """Returns a context in which JAX has 64-bit types."""
    library: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where it was before 0.8
    return library.enable_x64(True)


def own_types() -> Callable[[], AbstractContextManager[None]]:
    """Returns what makes a context in which JAX has the types that it has now, with or without those of 64 bits."""
    library: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    config: Any = jax.config
    return partial(library.enable_x64, bool(config.jax_enable_x64))


def coarsest_epsilon(frames: Iterable[Frame], liveness: Liveness) -> float:
    """Returns the relative precision of the narrowest floating-point type that the frames compute in.

    A model can compute in a narrower type than its arguments have, which limits the precision of finite differences.

    Args:
        frames: The frames.
        liveness: Which of their equations count.
    """
    equations = (frame.jaxpr.eqns[number] for frame in frames for number in liveness.live(frame))
    return max((_epsilon_of(each) for each in equations), default=_WIDE)


class NarrowType(NamedTuple):
    """NarrowType is a floating-point type with fewer digits than float32, in which a program computes.

    Attributes:
        name: The type's name.
        epsilon: Its relative precision.
        source: `file:line` of the first operation in it; None where unknown.
    """

    name: str
    epsilon: float
    source: str | None = None


def narrowest_type(frames: Iterable[Frame], liveness: Liveness) -> NarrowType | None:
    """Returns the narrowest type that frames compute in; None where all types have the digits of float32 or more.

    Args:
        frames: The frames.
        liveness: Which of their equations count.
    """
    equations = ((frame, frame.jaxpr.eqns[number]) for frame in frames for number in sorted(liveness.live(frame)))
    found = (
        NarrowType(dtype_name(variable.aval.dtype), _epsilon(variable), source_in(frame, equation))
        for frame, equation in equations
        for variable in equation.outvars
        if is_inexact(variable)
    )
    return _narrowest(found)


def narrowest_type_of(jaxpr: Jaxpr) -> NarrowType | None:
    """Returns the narrowest type that a jaxpr computes in, likewise."""
    variables = (each for equation in _computing(jaxpr) for each in equation.outvars if is_inexact(each))
    return _narrowest(NarrowType(dtype_name(each.aval.dtype), _epsilon(each)) for each in variables)


def coarsest_epsilon_of(jaxpr: Jaxpr) -> float:
    """Returns the relative precision of the narrowest type that a jaxpr computes in."""
    return max(map(_epsilon_of, _computing(jaxpr)), default=_WIDE)


def _computing(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yields the equations that make floating-point values of others, and not of the bits of integers."""
    for equation in jaxpr.eqns:
        if any(map(is_inexact, equation.invars)):
            yield equation
        for inside in sub_jaxprs(equation):
            yield from _computing(inside.jaxpr)


def _epsilon_of(equation: Equation) -> float:
    """Returns the relative precision of the narrowest type that an equation computes in.

    A product that states its algorithm has no more digits than float32, of whatever type its operands are, and what
    `reduce_precision` returns has those that it states.
    """
    if equation.primitive.name == "reduce_precision":
        return max(_WIDE, 2.0 ** -equation.params["mantissa_bits"])
    states_algorithm = type(equation.params.get("precision")).__name__ in _ALGORITHMS
    least = _SINGLE if states_algorithm else _WIDE
    return max([least, *(_epsilon(each) for each in equation.outvars if is_inexact(each))])


def _narrowest(types: Iterable[NarrowType]) -> NarrowType | None:
    return max((each for each in types if each.epsilon > _SINGLE), key=lambda each: each.epsilon, default=None)


def _epsilon(variable: Any) -> float:
    return float(jnp.finfo(variable.aval.dtype).eps)


def widened(leaf: Any) -> Any:
    """Returns an array as float64 or complex128; integers, booleans and keys are returned unchanged."""
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.asarray(np.asarray(leaf).astype(np.complex128))
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf).astype(np.float64))
    return leaf
