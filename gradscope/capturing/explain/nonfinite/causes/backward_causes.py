"""Backward causes are the known ways in which a derivative rule makes a gradient that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.nonfinite.causes.forward_causes import diagnosis_by_operands
from gradscope.capturing.explain.nonfinite.causes.lost_epsilons import with_lost_epsilon
from gradscope.capturing.explain.nonfinite.causes.repairs import (
    ADD_EPSILON,
    BASE_POSITIVE,
    CLIP_INSIDE,
    CLIP_NEGATIVE,
    NORM,
    SHIFT,
    WHERE_TWICE,
    WIDER,
    Diagnosis,
    element,
    is_large,
    largest,
    numbers,
    overflow,
)
from gradscope.capturing.explain.nonfinite.discards import discarding_where
from gradscope.capturing.explain.nonfinite.failures import Failure
from gradscope.capturing.explain.nonfinite.replay import Replay
from gradscope.primitive_groups import FUNCTIONS_OF_AN_ELEMENT
from gradscope.tracing.jaxpr.derivatives.custom_rules import custom_rule
from gradscope.tracing.jaxpr.jaxcompat import sub_jaxprs
from gradscope.tracing.lookup.operations import Operation, Operations

#: Their derivatives are infinite, or not defined, where an operand is 0.
_SINGULAR_AT_ZERO: Final = frozenset(
    {"log", "log2", "rsqrt", "div", "pow", "cbrt", "integer_pow", "atan2", "sqrt", "rem", "lgamma", "digamma"}
)
#: Their derivatives are infinite at both ends of where they are defined.
_SINGULAR_AT_ONE: Final = {"acos": "arccos", "asin": "arcsin", "atanh": "arctanh", "erf_inv": "erf_inv"}
_SINGULAR_AT: Final = {"log1p": -1.0, "acosh": 1.0}
_DECOMPOSITIONS: Final = frozenset({"eigh", "svd", "eig"})
#: Where the operations that are not defined everywhere are, and how to stay there.
_DEFINED: Final[Mapping[str, tuple[Callable[[float], bool], str]]] = {
    "sqrt": (lambda x: x >= 0, CLIP_NEGATIVE),
    "rsqrt": (lambda x: x >= 0, CLIP_NEGATIVE),
    "log": (lambda x: x >= 0, CLIP_NEGATIVE),
    "log1p": (lambda x: x >= -1, CLIP_NEGATIVE),
    "log2": (lambda x: x >= 0, CLIP_NEGATIVE),
    "pow": (lambda x: x >= 0, BASE_POSITIVE),
    "acos": (lambda x: abs(x) <= 1, CLIP_INSIDE),
    "asin": (lambda x: abs(x) <= 1, CLIP_INSIDE),
    "atanh": (lambda x: abs(x) <= 1, CLIP_INSIDE),
    "erf_inv": (lambda x: abs(x) <= 1, CLIP_INSIDE),
    "acosh": (lambda x: x >= 1, CLIP_INSIDE),
}


def backward_diagnosis(
    operation: Operation, failure: Failure, operations: Operations, replayed: Callable[[Sequence[Operation]], Replay]
) -> Diagnosis:
    """Returns what made a gradient that is not finite, as a clause, and its repair.

    Args:
        operation: The operation whose backward rule returned it.
        failure: Its first such element.
        operations: All operations, to find the readers of the result.
        replayed: Replays operations, for what they read.
    """
    if failure.equation.primitive.name.startswith("custom_vjp"):
        return _of_rule(failure)
    cause = _cause(operation, failure, operations)
    if _received(failure) == 0 and cause.repair in (ADD_EPSILON, CLIP_INSIDE, CLIP_NEGATIVE, BASE_POSITIVE, NORM):
        where = discarding_where(operation, failure, operations, replayed)
        away = f"is thrown away by the where{where.place}" if where else "does not change the loss"
        why = f"{cause.why}; its result {away}, so that the gradient that comes back is 0, and 0 times infinity is NaN"
        cause = Diagnosis(why, WHERE_TWICE if where else cause.repair)
    return with_lost_epsilon(cause, operation, operations)


def _of_rule(failure: Failure) -> Diagnosis:
    """Returns the diagnosis of a gradient that a function's own rule made."""
    # Its line is not known: JAX gives all that a rule computes the line of the function's call.
    rule = custom_rule(failure.equation)
    named = "" if rule is None or rule.function == failure.equation.primitive.name else f" {rule.function}"
    if failure.saved and failure.within is not None:
        why = f"the custom_vjp{named} saved what is not finite in its own forward rule{element(failure.within.index)}"
    else:
        place = element(failure.index)
        why = f"the custom_vjp{named} made it in its own backward rule, of a gradient that is finite{place}"
    if failure.within is None or sub_jaxprs(failure.within.equation):  # a loop's operands say nothing
        return Diagnosis(why)
    found = diagnosis_by_operands(failure.within)
    return Diagnosis(f"{why}: {found.why}", found.repair)


def _received(failure: Failure) -> float | None:
    """Returns the gradient that arrives at the element that failed; None where the shapes do not show which."""
    if failure.equation.primitive.name == "div" and (at := _zero_divisor(failure)) is not None:
        arrived, shape = _wide(next(iter(failure.arrived.values()))), failure.tensors[1].shape
        if arrived.ndim == len(shape):
            read = tuple(slice(None) if size == 1 else one for one, size in zip(at, shape, strict=True))
            return float(np.abs(arrived[read]).max(initial=0))  # of all elements that are divided by it
    return failure.received


def _cause(operation: Operation, failure: Failure, operations: Operations) -> Diagnosis:
    place, primitive = element(failure.index), failure.equation.primitive.name
    over = _overflow(failure)
    if over is not None:
        return over
    singular = _singular(operation, primitive, failure, operations)
    if singular is not None:
        return singular
    if primitive in _DECOMPOSITIONS:
        return Diagnosis(f"the derivative of {primitive} is not finite where two of the values that it finds coincide")
    if (
        _finite(failure)
        and math.isinf(failure.value)
        and is_large(failure.operands or failure.tensors, failure.arrived.values())
    ):
        found = overflow(failure.dtype, backward=True)
        return Diagnosis(f"{found.why} in the gradient of {primitive}{place}", found.repair)
    operands = f" at {numbers(failure.operands)}" if failure.operands else ""
    derivative = f"the derivative of {primitive}{operands}{place}"
    if _is_finite_in_float32(failure):
        bound = f"{failure.dtype} (largest {largest(failure.dtype):.6g})"
        return Diagnosis(f"{derivative} overflows {bound} where it is computed", WIDER)
    return Diagnosis(f"{derivative} is not finite")


def _is_finite_in_float32(failure: Failure) -> bool:
    """Returns whether the derivative of a function of one element is finite where it is computed in more bits."""
    equation, wide = failure.equation, jnp.finfo(jnp.float32).bits
    if equation.primitive.name not in FUNCTIONS_OF_AN_ELEMENT or len(failure.operands) != 1:
        return False
    if not jnp.issubdtype(failure.dtype, jnp.floating) or jnp.finfo(failure.dtype).bits >= wide:
        return False
    _, pull_back = jax.vjp(partial(equation.primitive.bind, **equation.params), jnp.float32(failure.operands[0]))
    return math.isfinite(*pull_back(jnp.float32(1)))


def _singular(operation: Operation, primitive: str, failure: Failure, operations: Operations) -> Diagnosis | None:
    """Returns the diagnosis of a derivative that is infinite, or not defined, where it was taken."""
    first, place = failure.operands[0] if failure.operands else math.nan, element(failure.index)
    if primitive == "sqrt" and first == 0:
        if _of_squares(operation, operations):
            return Diagnosis(f"the derivative of a norm at 0{place} is not finite", NORM)
        return Diagnosis(f"the derivative of sqrt at 0{place} is infinite", ADD_EPSILON)
    if (primitive in _SINGULAR_AT_ONE and abs(first) == 1) or first == _SINGULAR_AT.get(primitive):
        name = _SINGULAR_AT_ONE.get(primitive, primitive)
        return Diagnosis(f"the derivative of {name} at {first:g}{place} is infinite", CLIP_INSIDE)
    undefined = (
        _by_zero(failure) or _by_tiny(operation, failure, operations)
        if primitive == "div"
        else _outside(primitive, failure)
    )
    if undefined is not None:
        return undefined
    if (primitive in _SINGULAR_AT_ZERO or primitive.startswith("custom_jvp")) and 0 in failure.operands:
        rule = custom_rule(failure.equation)
        name = primitive if rule is None else rule.function.strip("_")
        why = f"the derivative of {name} at {numbers(failure.operands)}{place} is not finite"
        return Diagnosis(why, ADD_EPSILON)
    return None


def _outside(primitive: str, failure: Failure) -> Diagnosis | None:
    """Returns the diagnosis of a derivative where the operation itself is not defined."""
    if primitive not in _DEFINED or not failure.operands:
        return None
    first, (inside, repair) = failure.operands[0], _DEFINED[primitive]
    if inside(first) or not math.isfinite(first):
        return None
    why = f"the derivative of {primitive} at {numbers(failure.operands)}{element(failure.index)} is not finite"
    return Diagnosis(f"{why}: {primitive} is not defined there", repair)


def _by_zero(failure: Failure) -> Diagnosis | None:
    """Returns the diagnosis of a division by zero; None where no divisor is zero."""
    at = _zero_divisor(failure)
    if at is None:
        return None
    aligned = len(failure.operands) == 2 and at == failure.index
    numerator = failure.operands[0] if aligned or not np.ndim(failure.tensors[0]) else None
    divided = "a division" if numerator is None else f"{numerator:.6g} divided"
    return Diagnosis(f"the derivative of {divided} by 0{element(at)} is not finite", ADD_EPSILON)


def _by_tiny(operation: Operation, failure: Failure, operations: Operations) -> Diagnosis | None:
    """Returns the diagnosis of a division by a number whose square, by which the gradient is divided, is too small."""
    divisor = _wide(failure.tensors[1])
    if 1 not in failure.chosen or divisor.ndim != len(failure.index):
        return None
    by = float(divisor[_aligned(failure.index, divisor.shape)])
    beyond = _beyond_square(by * by, failure.dtype)
    if by == 0 or beyond is None:
        return None
    why = (
        f"the derivative of a division by {by:.6g}{element(failure.index)} is not finite: it divides by the square of "
        f"that, {beyond}"
    )
    sums = operations.made_by(operation.values[-1:], "reduce_sum")
    summed = [value for each in sums for value in each.values]
    masked = [value for each in operations.made_by(summed, "select_n") for value in each.values]
    exponentials = operations.made_by([*summed, *masked], "exp")
    repair = SHIFT if exponentials else ADD_EPSILON
    return Diagnosis(why, repair if _flushes(failure.dtype) else f"{repair}, or {WIDER}")


def _beyond_square(square: float, dtype: np.dtype) -> str | None:
    """Returns why a division by a square leaves the range of a type, as a clause; None where it does not."""
    smallest, most = float(jnp.finfo(dtype).tiny), largest(dtype)
    if _flushes(dtype) and square < smallest:
        return f"which is below the smallest normal {dtype}, {smallest:.3g}"
    if square * most < 1:
        return f"and 1 / {square:.3g} is beyond the largest {dtype}, {most:.6g}"
    return None


def _flushes(dtype: np.dtype) -> bool:
    """Returns whether XLA makes zero of what is below a type's smallest normal number; narrower types keep it."""
    return jnp.finfo(dtype).minexp <= jnp.finfo(jnp.float32).minexp


def _aligned(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns an index of a result as that of an operand, which may be repeated along its axes of size 1."""
    return tuple(0 if size == 1 else at for at, size in zip(index, shape, strict=True))


def _zero_divisor(failure: Failure) -> tuple[int, ...] | None:
    """Returns the place of the zero that a division divides by where its gradient is not finite."""
    divisor = _wide(failure.tensors[1])
    if divisor.ndim == len(failure.index):
        own = _aligned(failure.index, divisor.shape)
        if divisor[own] == 0:
            return own
    zeros = np.argwhere(divisor == 0)
    return tuple(map(int, zeros[0])) if len(zeros) else None


def _overflow(failure: Failure) -> Diagnosis | None:
    """Returns the diagnosis of a gradient beyond the range of its own type, which a conversion or a scaling made."""
    arrived = [_wide(each) for each in failure.arrived.values()]
    limit = float(jnp.finfo(failure.dtype).max)
    most = max((float(np.abs(each).max(initial=0)) for each in arrived), default=0.0)
    has_infinity = not math.isnan(float(np.asarray(np.inf).astype(failure.dtype)))
    place, primitive = element(failure.index), failure.equation.primitive.name
    if most > limit and primitive in ("convert_element_type", "reduce_precision", "copy"):
        found = overflow(failure.dtype, backward=True)
        why = f"{found.why}: the gradient that arrives at {primitive}{place} is up to {most:.6g}"
        return Diagnosis(why, found.repair)
    if not has_infinity and _finite(failure) and primitive not in _SINGULAR_AT_ZERO:
        found = overflow(failure.dtype, backward=True)
        return Diagnosis(f"{found.why} in the gradient of {primitive}{place}", found.repair)
    return None


def _finite(failure: Failure) -> bool:
    return all(np.isfinite(_wide(each)).all() for each in failure.tensors)


def _wide(array: Any) -> np.ndarray:
    host = np.asarray(array)
    return host if host.dtype.kind in "fciub" else host.astype(np.float32)


def _of_squares(operation: Operation, operations: Operations) -> bool:
    """Returns whether an operation reads a sum of squares."""
    squares = {"square", "integer_pow", "mul", "abs"}
    summed = [value for each in operations.made_by(operation.values, "reduce_sum") for value in each.values]
    return any(operations.maker(value).primitive in squares for value in summed if value.value.equation >= 0)
