"""Failures are elements of results and gradients that are not finite, found in operations that run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.primitive_groups import MATRIX_PRODUCTS
from gradscope.tracing.jaxpr.derivatives.vjp import pull_back_of, pulled_back
from gradscope.tracing.jaxpr.jaxcompat import (
    CUSTOM_RULES,
    Atom,
    Equation,
    SubJaxpr,
    bind,
    is_literal,
    kind_of,
    run_closed,
    sub_jaxprs,
    trace,
)
from gradscope.tracing.jaxpr.transfers import loop_operands

#: Equations whose elements are made of many elements of an operand, even where it has the result's shape.
_MIXING: Final = MATRIX_PRODUCTS | {
    "triangular_solve", "cholesky", "lu", "fft", "cumsum", "cumprod", "cumlogsumexp",
}  # fmt: skip


#: The most iterations of a `while` that run again.
_MOST_ITERATIONS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A `Failure` is the first element of an operation's result or gradient that is not finite.

    Attributes:
        equation: The equation that made it: the operation's, or one inside it where it has a derivative rule.
        index: The element's index in the result, or in the operand's gradient.
        value: The element.
        operands: The forward operands' elements at that index; operands without one are left out.
        tensors: All of the equation's forward operands.
        received: Backward, the arriving gradient's element at that index; None where the shapes differ, and forward.
        arrived: Backward, the arriving gradients by output; empty forward.
        chosen: Backward, the positions of the operands whose gradients were looked at; empty forward.
        dtype: The dtype of the result, or of the gradient.
        iteration: The iteration of the `while` that the operation is; None for any other.
        within: Backward, the failure of the operation inside the `custom_vjp` rule; None where there is none.
        saved: Whether that is in the rule's forward function, whose result its backward function reads.
    """

    equation: Equation
    index: tuple[int, ...]
    value: float
    operands: tuple[float, ...]
    tensors: Sequence[np.ndarray]
    received: float | None = None
    arrived: Mapping[int, Any]
    dtype: Any
    chosen: tuple[int, ...] = ()
    iteration: int | None = None
    within: Failure | None = None
    saved: bool = False


def forward_failure(equation: Equation, result: np.ndarray, operands: Sequence[np.ndarray]) -> Failure:
    """Returns the first element that is not finite of a result, or that of the equation inside which made it."""
    return _inside(equation, operands) or _failure(equation, result, operands)


def fails_again(failure: Failure, operands: Sequence[np.ndarray]) -> bool:
    """Returns whether the element that failed is not finite at other operands of the same equation, either.

    Other elements may be for reasons of their own, as where differences of large numbers overflow beside it.
    """
    values = [jax.device_put(operand) for operand in operands]
    if failure.arrived:
        results = pulled_back(failure.equation, values, failure.chosen, failure.arrived)
    else:
        results = bind(failure.equation, values)
    like = (each for each in map(np.asarray, results) if each.dtype == failure.dtype)
    elements = (each[failure.index] for each in like if _has_element(each, failure.index))
    return any(first_nonfinite(np.asarray(each)[None]) is not None for each in elements)


def _has_element(array: np.ndarray, index: tuple[int, ...]) -> bool:
    return array.ndim == len(index) and all(at < length for at, length in zip(index, array.shape, strict=True))


def backward_failure(
    equation: Equation, operands: Sequence[np.ndarray], arrived: Mapping[int, Any], chosen: Sequence[int]
) -> Failure | None:
    """Returns the first element that is not finite in what an equation's backward rule returns to chosen operands."""
    # Here and elsewhere not by `jnp.asarray`, which compiles the identity for each shape of NumPy's arrays.
    values = [jax.device_put(operand) for operand in operands]
    gradients = pulled_back(equation, values, chosen, arrived)
    for gradient in map(np.asarray, gradients):
        if first_nonfinite(gradient) is not None:
            saved = _in_forward_rule(equation, values, arrived, chosen)
            within = saved or _in_rule(equation, values, arrived, chosen, gradients)
            failure = replace(_failure(equation, gradient, operands), within=within, saved=saved is not None)
            one = np.asarray(next(iter(arrived.values())))
            received = number_of(one[failure.index]) if one.shape == gradient.shape else None
            return replace(failure, arrived=arrived, received=received, chosen=tuple(chosen))
    return None


def _in_rule(
    equation: Equation, values: Sequence[Any], arrived: Mapping[int, Any], chosen: Sequence[int], gradients: list[Any]
) -> Failure | None:
    """Returns the failure of an operation in the backward rule of a `custom_vjp`; None for any other equation."""
    if not equation.primitive.name.startswith("custom_vjp"):
        return None
    jaxpr, constants, _ = trace(lambda *given: pulled_back(equation, given[0], chosen, given[1]), values, arrived)
    rule = SubJaxpr(kind="call", branch=0, jaxpr=jaxpr, constants=constants)
    return _in_jaxpr(rule, [*values, *arrived.values()], gradients)


def _in_forward_rule(
    equation: Equation, values: Sequence[Any], arrived: Mapping[int, Any], chosen: Sequence[int]
) -> Failure | None:
    """Returns the failure of an operation in the forward function of a `custom_vjp` rule, that spoils its gradients.

    None where the gradients are not finite all the same, and for any other equation.
    """
    if not equation.primitive.name.startswith("custom_vjp"):
        return None

    def function(operands: Sequence[Any]) -> Any:
        return pull_back_of(equation, operands, chosen, [*arrived]).function

    residuals, tree = jax.tree_util.tree_flatten(function(values))
    if not _bad(_numbers(residuals)):
        return None
    finite = [jax.device_put(mended(np.asarray(each))) if _numbers([each]) else each for each in residuals]
    if _bad(jax.tree_util.tree_unflatten(tree, finite)(list(arrived.values()))):
        return None
    jaxpr, constants, _ = trace(lambda given: jax.tree_util.tree_leaves(function(given)), values)
    return _in_jaxpr(SubJaxpr(kind="call", branch=0, jaxpr=jaxpr, constants=constants), values, _numbers(residuals))


def first_nonfinite(array: np.ndarray) -> tuple[int, ...] | None:
    """Returns the index of the first NaN, or else of the first infinity; None where all elements are finite."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return None
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    for bad in (np.isnan(wide), np.isinf(wide)):
        if bad.any():
            return tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape)))
    return None


def mended(operand: np.ndarray) -> np.ndarray:
    """Returns an operand with ones in place of elements that are not finite."""
    if first_nonfinite(operand) is None:
        return operand
    wide = operand if operand.dtype.kind in "fc" else operand.astype(np.float32)
    return np.where(np.isfinite(wide), wide, 1).astype(operand.dtype)


def reaches_largest(failure: Failure) -> bool:
    """Returns whether a failure is an infinity made of an operand that is about the largest number of its type."""
    floating = (each for each in failure.tensors if jnp.issubdtype(each.dtype, jnp.floating) and each.size)
    return np.isinf(failure.value) and any(
        np.abs(each.astype(np.float64)).max() > 0.5 * float(jnp.finfo(each.dtype).max) for each in floating
    )


def number_of(element: Any) -> float:
    """Returns an element as a number; of a complex one the magnitude."""
    return float(abs(element)) if np.iscomplexobj(element) else float(element)


def _inside(equation: Equation, operands: Sequence[np.ndarray]) -> Failure | None:
    """Returns the failure of the equation inside a function with a derivative rule; None for any other equation."""
    if kind_of(equation) == "while":
        return _in_while(equation, operands)
    # Both compute what their jaxpr computes, so that a failure in them is a failure of an equation inside.
    if equation.primitive.name not in CUSTOM_RULES and kind_of(equation) != "call":
        return None
    return _in_jaxpr(sub_jaxprs(equation)[0], operands, bind(equation, [jax.device_put(each) for each in operands]))


def _in_while(equation: Equation, operands: Sequence[np.ndarray]) -> Failure | None:
    """Returns the failure of an equation in the body of a `while`, which runs until its carry is not finite."""
    params = equation.params
    tested, constants, carries, _ = loop_operands(equation, [jax.device_put(each) for each in operands])
    body = jax.jit(lambda *received: run_closed(params["body_jaxpr"], *received))
    for iteration in range(_MOST_ITERATIONS):
        if not np.all(run_closed(params["cond_jaxpr"], *tested, *carries)[0]):
            return None
        made = body(*constants, *carries)
        if _bad(made):
            found = _in_jaxpr(sub_jaxprs(equation)[0], [*constants, *carries], made)
            return None if found is None else replace(found, iteration=iteration)
        carries = made
    return None


def _in_jaxpr(sub: SubJaxpr, operands: Sequence[Any], outputs: Sequence[Any]) -> Failure | None:
    """Returns the failure of the first equation of a jaxpr that makes of finite operands what its outputs have."""
    values: dict[Atom, Any] = dict(zip(sub.jaxpr.constvars, sub.constants, strict=True))
    values.update(zip(sub.jaxpr.invars, map(jax.device_put, operands), strict=True))
    has_nan = _has_nan(outputs)
    for inner in sub.jaxpr.eqns:
        read = [atom.val if is_literal(atom) else values[atom] for atom in inner.invars]
        made = bind(inner, read)
        results, arrays = list(map(np.asarray, _numbers(made))), list(map(np.asarray, _numbers(read)))
        bad = next((each for each in results if first_nonfinite(each) is not None), None)
        if bad is not None and (_has_nan([bad]) and not _has_nan(arrays) if has_nan else not _bad(arrays)):
            return forward_failure(inner, bad, arrays)
        values.update(zip(inner.outvars, made, strict=True))
    return None


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Returns the values that are no random keys."""
    return [each for each in values if not jnp.issubdtype(jnp.result_type(each), jax.dtypes.extended)]


def _bad(arrays: Sequence[Any]) -> bool:
    return any(first_nonfinite(np.asarray(each)) is not None for each in arrays)


def _has_nan(arrays: Sequence[Any]) -> bool:
    first = ((np.asarray(each), first_nonfinite(np.asarray(each))) for each in arrays)
    return any(index is not None and np.isnan(number_of(array[index])) for array, index in first)


def _failure(equation: Equation, array: np.ndarray, operands: Sequence[np.ndarray]) -> Failure:
    index = first_nonfinite(array) or ()
    mixing = equation.primitive.name in _MIXING
    aligned = [operand for operand in operands if not mixing and _broadcasts(operand.shape, array.shape)]
    return Failure(
        equation=equation,
        index=index,
        value=number_of(array[index]),
        operands=tuple(number_of(np.broadcast_to(operand, array.shape)[index]) for operand in aligned),
        tensors=operands,
        arrived={},
        dtype=array.dtype,
    )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Returns whether a shape broadcasts to another, as an elementwise operation reads its operands."""
    return not shape or (len(shape) == len(to) and all(one in (1, other) for one, other in zip(shape, to, strict=True)))
