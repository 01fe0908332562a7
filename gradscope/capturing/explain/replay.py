"""A replay runs a single operation again, on the operands and the gradient that it had in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import whole_tensor
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.vjp import pulled_back
from gradscope.tracing.lookup.operations import Operation
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A `Failure` is the first element of an operation's result or gradient that is not finite.

    Attributes:
        index: The element's index in the result, or in the operand's gradient.
        value: The element.
        operands: The forward operands' elements at that index; operands without one are left out.
        received: Backward, the arriving gradient's element at that index; None where the shapes differ, and forward.
        dtype: The dtype of the result.
    """

    index: tuple[int, ...]
    value: float
    operands: tuple[float, ...]
    received: float | None
    dtype: Any


class Replay:
    """A `Replay` runs single operations of a traced loss on the values that they had in the run.

    Args:
        trace: The loss.
        leaves: Its flat arguments.
    """

    def __init__(self, trace: Trace, leaves: Sequence[Any]) -> None:
        self._trace = trace
        self._leaves = leaves

    def forward(self, operation: Operation) -> Failure | None:
        """Returns the first element of an operation's results that is not finite; None where all are finite."""
        values, _ = self._tensors([*operation.values, *operation.outputs], [])
        operands = _concrete(operation, values)
        for output in operation.outputs:
            index = _first_nonfinite(values[output])
            if index is not None:
                return _failure(values[output], index, operands, None, values[output].dtype)
        return None

    def backward(self, operation: Operation) -> Failure | None:
        """Returns the first element that is not finite in the gradients that an operation returns to its operands.

        None where all of them are finite, and where the gradient that it receives is not: then another operation is the
        origin.
        """
        values, gradients = self._tensors([*operation.values, *operation.outputs], operation.outputs)
        operands = _concrete(operation, values)
        received = [gradients.get(output) for output in operation.outputs]
        if any(each is not None and _first_nonfinite(each) is not None for each in received):
            return None
        arrived = {position: jnp.asarray(each) for position, each in enumerate(received) if each is not None}
        for gradient in _pulled_back(operation, operands, arrived):
            index = _first_nonfinite(gradient)
            if index is not None:
                return _failure(gradient, index, operands, received[0], values[operation.outputs[0]].dtype)
        return None

    def _tensors(
        self, values: Sequence[ValueAt], gradients: Sequence[ValueAt]
    ) -> tuple[dict[ValueAt, np.ndarray], dict[ValueAt, np.ndarray]]:
        """Returns values, and the gradients of the loss with respect to values, as far as there are any."""
        keys = list(dict.fromkeys(value_at.value for value_at in values))
        sites = tuple(self._trace.site_at(key) for key in keys)
        differentiated = {value_at.value for value_at in gradients}
        observed = frozenset(
            number for number, site in enumerate(sites) if site.value in differentiated and site.reach is Reach.GRADIENT
        )
        program, reached = observing_program(
            self._trace, Plan(sites=sites, gradients=observed, observe=whole_tensor, outputs=(False,) * self._outputs)
        )
        seen = jax.jit(program)(self._leaves)
        numbers = {key: number for number, key in enumerate(keys)}

        def at(tensors: Any, value_at: ValueAt) -> np.ndarray:
            loops = sites[numbers[value_at.value]].loops
            index = tuple(
                iteration for iteration, loop in zip(value_at.iteration, loops, strict=True) if loop.length is not None
            )
            return np.asarray(tensors[numbers[value_at.value]])[index]

        return (
            {value_at: at(seen.captured.values, value_at) for value_at in values},
            {
                value_at: at(seen.cotangents, value_at)
                for value_at in gradients
                if numbers[value_at.value] in reached.sites
            },
        )

    @property
    def _outputs(self) -> int:
        return len(self._trace.outputs)


def _concrete(operation: Operation, values: dict[ValueAt, np.ndarray]) -> list[np.ndarray]:
    return [values[each] if isinstance(each, ValueAt) else np.asarray(each) for each in operation.operands]


def _pulled_back(operation: Operation, operands: Sequence[Any], arrived: Mapping[int, Any]) -> list[np.ndarray]:
    """Returns the gradients of an operation's inexact operands, by the operation's own backward rule."""
    inexact = [number for number, operand in enumerate(operands) if jnp.issubdtype(operand.dtype, jnp.inexact)]
    values = [jnp.asarray(operand) for operand in operands]
    return [np.asarray(gradient) for gradient in pulled_back(operation.equation, values, inexact, arrived)]


def _first_nonfinite(array: np.ndarray) -> tuple[int, ...] | None:
    """Returns the index of the first NaN, or else of the first infinity."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return None
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    for bad in (np.isnan(wide), np.isinf(wide)):
        if bad.any():
            return tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape)))
    return None


def _failure(
    array: np.ndarray, index: tuple[int, ...], operands: Sequence[np.ndarray], received: np.ndarray | None, dtype: Any
) -> Failure:
    aligned = [operand for operand in operands if _broadcasts(operand.shape, array.shape)]
    return Failure(
        index=index,
        value=_number(array[index]),
        operands=tuple(_number(np.broadcast_to(operand, array.shape)[index]) for operand in aligned),
        received=None if received is None or received.shape != array.shape else _number(received[index]),
        dtype=dtype,
    )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Returns whether a shape broadcasts to another, as an elementwise operation reads its operands."""
    return not shape or (len(shape) == len(to) and all(one in (1, other) for one, other in zip(shape, to, strict=True)))


def _number(element: Any) -> float:
    return float(abs(element)) if np.iscomplexobj(element) else float(element)
