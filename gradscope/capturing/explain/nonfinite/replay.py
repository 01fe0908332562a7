"""A replay runs single operations again, on the operands and the gradients that they had in the run.

One program observes those of all operations that are requested, however many they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.nonfinite.nonfinite_flags import counted_iterations
from gradscope.capturing.explain.nonfinite.single_run import run_once
from gradscope.instrument.observing_program import observing_program, observing_values
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import full_tensor
from gradscope.primitive_groups import MATRIX_PRODUCTS
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.iterations import ValueAt
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
from gradscope.tracing.jaxpr.vjp import pulled_back
from gradscope.tracing.lookup.operations import Operation
from gradscope.tracing.tracer import Trace

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


class Replay:
    """A `Replay` holds what some operations of a traced loss received in the run.

    Args:
        trace: The loss.
        leaves: Its flat arguments.
        operations: The operations.
        backward: Whether the gradients that arrive at them are observed, too.
    """

    def __init__(
        self, trace: Trace, leaves: Sequence[Any], operations: Sequence[Operation], *, backward: bool = False
    ) -> None:
        outputs = {output.value for operation in operations for output in operation.outputs}
        read = {value_at.value for operation in operations for value_at in operation.values}
        self._sites = tuple(trace.site_at(key) for key in dict.fromkeys((*read, *outputs)))
        self._numbers = {site.value: number for number, site in enumerate(self._sites)}
        differentiated = frozenset(
            number
            for number, site in enumerate(self._sites)
            if backward and site.value in outputs and site.reach is Reach.GRADIENT
        )
        plan = Plan(sites=self._sites, gradients=differentiated, observe=full_tensor)
        program, reached = observing_program(trace, plan)
        forward = observing_values(trace, plan)

        def seen(leaves: Sequence[Any]) -> tuple[Any, Any]:
            if not backward:
                return forward(leaves), {}
            observed = program(leaves)
            return observed.captured.values, observed.cotangents

        self._values, cotangents = run_once(seen, list(leaves))
        self._cotangents = {number: each for number, each in cotangents.items() if number in reached.sites}

    def forward(self, operation: Operation) -> Failure | None:
        """Returns the first element of an operation's results that is not finite; None where all are finite."""
        operands = self._operands(operation)
        for output in operation.outputs:
            result = self._at(self._values, output)
            if result is not None and first_nonfinite(result) is not None:
                return _inside(operation.equation, operands) or _failure(operation.equation, result, operands)
        return None

    def backward(self, operation: Operation, to: ValueAt) -> Failure | None:
        """Returns the first element that is not finite in the gradients that an operation returns to one value.

        None where all of them are finite, and where the gradient that it receives is not: then another operation is the
        origin.
        """
        received = [self._at(self._cotangents, output) for output in operation.outputs]
        if any(each is not None and first_nonfinite(each) is not None for each in received):
            return None
        arrived = {position: jax.device_put(each) for position, each in enumerate(received) if each is not None}
        operands = enumerate(operation.operands)
        chosen = [number for number, operand in operands if isinstance(operand, ValueAt) and operand == to]
        return _backward_failure(operation.equation, self._operands(operation), arrived, chosen) if arrived else None

    def _operands(self, operation: Operation) -> list[np.ndarray]:
        found = (
            self._at(self._values, each) if isinstance(each, ValueAt) else np.asarray(each)
            for each in operation.operands
        )
        return [np.asarray(each) for each in found]

    def _at(self, tensors: Mapping[int, Any], value_at: ValueAt) -> np.ndarray | None:
        number = self._numbers[value_at.value]
        if number not in tensors:
            return None
        return np.asarray(tensors[number][counted_iterations(self._sites[number], value_at)])


def failed_again(failure: Failure, operands: Sequence[np.ndarray]) -> Failure | None:
    """Returns the failure of the same equation at other operands; None where its result, or gradient, is finite."""
    if failure.arrived:
        return _backward_failure(failure.equation, operands, failure.arrived, failure.chosen)
    for result in map(np.asarray, bind(failure.equation, [jax.device_put(operand) for operand in operands])):
        if first_nonfinite(result) is not None:
            return _failure(failure.equation, result, operands)
    return None


def _backward_failure(
    equation: Equation, operands: Sequence[np.ndarray], arrived: Mapping[int, Any], chosen: Sequence[int]
) -> Failure | None:
    """Returns the first element that is not finite in what an equation's backward rule returns to chosen operands."""
    # Here and elsewhere not by `jnp.asarray`, which compiles the identity for each shape of NumPy's arrays.
    values = [jax.device_put(operand) for operand in operands]
    gradients = pulled_back(equation, values, chosen, arrived)
    for gradient in map(np.asarray, gradients):
        if first_nonfinite(gradient) is not None:
            failure = replace(
                _failure(equation, gradient, operands), within=_in_rule(equation, values, arrived, chosen, gradients)
            )
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
        results = [np.asarray(each) for each in made if not jnp.issubdtype(each.dtype, jax.dtypes.extended)]
        arrays = [np.asarray(each) for each in read if not jnp.issubdtype(jnp.result_type(each), jax.dtypes.extended)]
        bad = next((each for each in results if first_nonfinite(each) is not None), None)
        if bad is not None and (_has_nan([bad]) and not _has_nan(arrays) if has_nan else not _bad(arrays)):
            return _inside(inner, arrays) or _failure(inner, bad, arrays)
        values.update(zip(inner.outvars, made, strict=True))
    return None


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
