"""A replay runs single operations again, on the operands and the gradients that they had in the run.

One program observes those of all operations that are requested, however many they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from gradscope.capturing.explain.nonfinite.failures import Failure, backward_failure, first_nonfinite, forward_failure
from gradscope.capturing.explain.nonfinite.nonfinite_flags import counted_iterations
from gradscope.capturing.explain.nonfinite.single_run import run_once
from gradscope.instrument.observing_program import observing_program, observing_values
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import full_tensor
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.operations import Operation
from gradscope.tracing.tracer import Trace


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
            return observed.captured, observed.cotangents

        captured, cotangents = run_once(seen, list(leaves))
        self._values, self._ran = captured.values, captured.iterations
        self._cotangents = {number: each for number, each in cotangents.items() if number in reached.sites}

    def forward(self, operation: Operation) -> Failure | None:
        """Returns the first element of an operation's results that is not finite; None where all are finite."""
        operands = self.operands(operation)
        for output in operation.outputs:
            result = self._at(self._values, output)
            if result is not None and first_nonfinite(result) is not None:
                return forward_failure(operation.equation, result, operands)
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
        return backward_failure(operation.equation, self.operands(operation), arrived, chosen) if arrived else None

    def as_ran(self, operation: Operation) -> Operation:
        """Returns an operation in the iteration that ran: of a `while`, of which only the last is observed, that."""
        number = self._numbers[operation.outputs[0].value]
        if number not in self._ran:
            return operation
        loops, iteration = operation.frame.loops, operation.iteration
        counts = iter(np.asarray(self._ran[number])[counted_iterations(self._sites[number], operation.outputs[0])])
        ran = (int(next(counts)) - 1 if loop.length is None else at for at, loop in zip(iteration, loops, strict=True))
        return replace(operation, iteration=tuple(max(at, 0) for at in ran))

    def operands(self, operation: Operation) -> list[np.ndarray]:
        """Returns the operands of an operation."""
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
