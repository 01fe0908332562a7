"""The origin search finds the first operation that made a NaN or an infinity, forward or backward.

The loss runs once more, with flags in place of the tensors where the dump's statistics do not have them, and then the
few operations that matter once more.

Forward, the search goes back from the loss: from a result that is not finite to the operands that are not, until all
operands of an operation are finite. A NaN is followed through NaNs only: an infinity may be intended, as in a mask, but
the operation that makes a NaN of it is an error. Where an operand of that operation is an infinity that was computed
and not stated as a constant, and without which there would be no NaN, the origin is where the infinity began. Where an
operation has infinities in the place of its operand's NaNs, as a maximum over windows on a CPU, these are followed.

Backward, where the loss is finite, the search takes the gradient that is not finite and closest to the loss. One of the
uses of its value returned it. The backward rules of these uses run once more to find which. Where it would be finite
but for an operand that is not, the origin is in the forward pass, although nothing of it reaches the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from gradscope import naming
from gradscope.capturing.execution.preparation import Prepared
from gradscope.capturing.explain.nonfinite.births import Birth, Births
from gradscope.capturing.explain.nonfinite.causes.backward_causes import backward_diagnosis
from gradscope.capturing.explain.nonfinite.causes.forward_causes import forward_diagnosis
from gradscope.capturing.explain.nonfinite.causes.repairs import Diagnosis, element
from gradscope.capturing.explain.nonfinite.failures import (
    Failure,
    fails_again,
    first_nonfinite,
    mended,
    reaches_largest,
)
from gradscope.capturing.explain.nonfinite.gradient_paths import GradientPaths, observe_suspects
from gradscope.capturing.explain.nonfinite.nonfinite_flags import KnownFlags, NonfiniteFlags, is_argument
from gradscope.capturing.explain.nonfinite.replay import Replay
from gradscope.dump.manifest.operation_facts import OF_GIVEN_VALUES, Origin
from gradscope.tracing.jaxpr.frames import OPERAND, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.source_lines import source_of
from gradscope.tracing.lookup.operations import Operation, Operations
from gradscope.tracing.tracer import Trace, trace_loss

#: The most uses of one value whose backward rules run again: those of the last iterations of a loop come first.
_MOST_USES: Final = 64


class _First(NamedTuple):
    """A `_First` is an operation that made the first value that is not finite.

    Attributes:
        operation: The operation, in the iteration that ran.
        failure: Its first such element; None where it is not known.
        diagnosis: What went wrong.
        then: What went wrong in the operation that made a NaN of it; "" where it is that one.
    """

    operation: Operation
    failure: Failure | None
    diagnosis: Diagnosis
    then: str = ""

    @property
    def kind(self) -> str:
        """What the element is."""
        return "Inf" if self.failure is not None and np.isinf(self.failure.value) else "NaN"

    @property
    def source(self) -> str | None:
        """The line of the equation that failed, which may be inside the operation."""
        inside = self.failure is not None and self.failure.equation is not self.operation.equation
        return (source_of(self.failure.equation) if self.failure and inside else None) or self.operation.layer.source

    def origin(self, direction: Literal["forward", "backward"], why: str) -> Origin:
        """Returns the origin, described by a sentence."""
        operation, failure = self.operation, self.failure
        return Origin(
            direction=direction,
            name=operation.name,
            why=why,
            layer=operation.layer_name,
            repair=self.diagnosis.repair,
            primitive=operation.primitive if failure is None else failure.equation.primitive.name,
            source=self.source,
            iteration=operation.iteration,
            index=() if failure is None else failure.index,
            operands=() if failure is None else failure.operands,
        )


def find_origins(
    loss: Callable[[Any, Any], Any], prepared: Prepared, known: KnownFlags, *, finite: bool
) -> tuple[Origin, ...]:
    """Returns the operation in which a value that is not finite began; nothing where all values are finite.

    Args:
        loss: The loss.
        prepared: Its arguments.
        known: What the run has shown already.
        finite: Whether the loss is finite, so that only gradients are not.

    Returns:
        One origin: forward where the loss is not finite, or where an operation's result is not that spoils the
        gradients; backward where only gradients are not.
    """
    trace = prepared.resolved.trace
    if not trace.operations:
        trace = trace_loss(loss, prepared.variables, prepared.batch, operations=True)
    search = _Search(trace, prepared.leaves, known)
    start = resolve(trace.root, trace.root.jaxpr.outvars[0])
    found = search.backward() if finite else None if start is None else search.forward(ValueAt(start, ()))
    return () if found is None else (found,)


class _Search:
    """A `_Search` finds the origin in one run.

    Args:
        trace: The loss, operations included.
        leaves: Its flat arguments.
        known: What is known already.
    """

    def __init__(self, trace: Trace, leaves: Sequence[Any], known: KnownFlags) -> None:
        self._trace = trace
        self._leaves = leaves
        self._operations = Operations(trace)
        self._flags = NonfiniteFlags(trace, leaves, known, self._operations)
        self._births = Births(self._operations, self._flags)

    def forward(self, start: ValueAt) -> Origin | None:
        """Returns the origin of the value that is the loss; None where it is finite."""
        self._flags.observe_all_values()
        if not self._flags.value(start):
            return None
        birth = self._births.of(start)
        if is_argument(birth.value.value):
            return self._of_argument(birth.value)
        operation = self._operations.maker(birth.value)
        first = self._first(operation, self._replayed([operation]))
        if (param := self._nonfinite_param(first.operation)) is not None:
            return self._of_argument(param)
        if birth.stated:
            return first.origin("forward", "is the first Inf: a constant of the program that reaches the loss")
        if not first.then:
            return self._hidden(first) or first.origin("forward", f"made the first {first.kind}: {first.diagnosis.why}")
        made = f"made the infinity of which {_located(operation)} makes the first NaN, {first.then}"
        return first.origin("forward", f"{made}: {first.diagnosis.why}")

    def _hidden(self, last: _First) -> Origin | None:
        """Returns where an infinity began that was made finite again, and of which an operation made another."""
        if last.failure is None or not reaches_largest(last.failure):
            return None
        if (found := self._births.replaced(last.operation)) is None:
            return None
        replacing, birth = found
        operation = self._operations.maker(birth.value)
        first = self._first(operation, self._replayed([operation]))
        by = _located(replacing).replace("select_n", "the where")
        then = f"{by} makes it finite, and {_located(last.operation)} an Inf again"
        return first.origin("forward", f"made the first {first.kind}: {first.diagnosis.why}; {then}")

    def backward(self) -> Origin | None:
        """Returns the operation closest to the loss whose gradient is not finite although the one it receives is."""
        observe_suspects(self._flags, self._operations)
        if (found := self._sent_back()) is None:  # what is known is of another program, which may round differently
            self._flags.observe_all_gradients()
            found = self._sent_back() or self._of_sum()
        return found

    def _sent_back(self) -> Origin | None:
        """Returns the operation that returned the gradient closest to the loss; None where none is found to."""
        bad = self._closest()
        if bad is None:
            return None
        finite = (
            reader
            for reader in self._operations.readers(bad)
            if not any(self._flags.gradient(output) for output in reader.outputs)
        )
        uses = list(islice(finite, _MOST_USES))
        replay = self._replayed(uses, backward=True)
        for use in uses:
            if (failure := replay.backward(use, bad)) is not None:
                return self._of_use(use, failure, replay)
        return None

    def _closest(self) -> ValueAt | None:
        return next(GradientPaths(self._flags, self._operations).evidence(), None)

    def _of_use(self, use: Operation, failure: Failure, replay: Replay) -> Origin:
        kind = "NaN" if np.isnan(failure.value) else "Inf"
        earlier = self._needed(use, failure)
        if earlier is None:
            diagnosis = backward_diagnosis(use, failure, self._operations, self._replayed)
            return _First(replay.as_ran(use), failure, diagnosis).origin(
                "backward", f"sent back the first {kind}: {diagnosis.why}"
            )
        first = self._first(earlier, replay)
        return first.origin(
            "forward",
            f"made {first.kind} in the forward pass: {first.diagnosis.why}; it does not reach the loss, but the "
            f"gradients: {_located(use)} sends back the first {kind}{element(failure.index)}",
        )

    def _first(self, operation: Operation, replay: Replay) -> _First:
        """Returns an operation's result that is not finite, or the infinity without which it would be."""
        failure = replay.forward(operation)
        diagnosis = forward_diagnosis(operation, failure, self._operations)
        if failure is None:
            return _First(replay.as_ran(operation), None, diagnosis)
        earlier = self._needed(operation, failure)
        if earlier is None:
            return _First(replay.as_ran(operation), failure, diagnosis)
        made = replay.forward(earlier)
        why = forward_diagnosis(earlier, made, self._operations)
        return _First(replay.as_ran(earlier), made, why, then=diagnosis.why)

    def _of_sum(self) -> Origin | None:
        """Returns the origin of a gradient whose terms are all finite."""
        bad = self._closest()
        if bad is None or (bad.value.equation == OPERAND and not is_argument(bad.value)):
            return None
        if is_argument(bad.value):
            leaf = self._trace.arguments[bad.value.position]
            name, layer, source = naming.key_of(leaf.family, leaf.name), None, None
        else:
            maker = self._operations.maker(bad)
            name, layer, source = maker.name, maker.layer_name, maker.layer.source
        why = (
            "receives the first gradient that is not finite: none of the terms that flow back to it was found to be so"
        )
        return Origin(direction="backward", name=name, why=why, layer=layer, source=source, iteration=bad.iteration)

    def _replayed(self, operations: Sequence[Operation], *, backward: bool = False) -> Replay:
        """Returns a replay of operations, and of those that made their operands' infinities and NaNs."""
        needed, fresh = list(operations), list(operations)
        for _ in range(2):  # of a NaN, where it began; of that operation, the infinity that it made the NaN of
            births = {birth.value: None for operation in fresh for birth in self._computed(operation).values()}
            fresh = [self._operations.maker(value) for value in births]
            needed += fresh
        return Replay(self._trace, self._leaves, needed, backward=backward)

    def _nonfinite_param(self, operation: Operation) -> ValueAt | None:
        """Returns the parameter that an operation's operand is made of and that was not finite before the run."""
        births = (self._births.of(each).value for each in operation.values if self._flags.value(each))
        families = [leaf.family for leaf in self._trace.arguments]
        return next((v for v in births if is_argument(v.value) and families[v.value.position] == naming.PARAM), None)

    def _computed(self, operation: Operation) -> dict[int, Birth]:
        """Returns where an operation's operands that are not finite began, by their positions.

        Nothing where one of them is a constant infinity, or an argument: it may be meant.
        """
        operands = ((at, each) for at, each in enumerate(operation.operands) if isinstance(each, ValueAt))
        births = {at: self._births.of(each) for at, each in operands if self._flags.value(each)}
        all_computed = all(not birth.stated and not is_argument(birth.value.value) for birth in births.values())
        return births if all_computed else {}

    def _needed(self, operation: Operation, failure: Failure) -> Operation | None:
        """Returns the operation that made an operand without which there would be no failure; None where none did."""
        births = self._computed(operation)
        if failure.equation is operation.equation and births:
            tensors = enumerate(failure.tensors)
            if fails_again(failure, [mended(each) if at in births else each for at, each in tensors]):
                return None
        first = min(births.values(), key=lambda birth: self._flags.rank(birth.value), default=None)
        return None if first is None else self._operations.maker(first.value)

    def _of_argument(self, value_at: ValueAt) -> Origin:
        leaf = self._trace.arguments[value_at.value.position]
        array = np.asarray(self._leaves[value_at.value.position])
        wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
        counted = f"has {np.isnan(wide).sum():,} NaN and {np.isinf(wide).sum():,} Inf"
        index = first_nonfinite(array) or ()
        return Origin(
            direction="forward",
            name=naming.key_of(leaf.family, leaf.name),
            why=f"{counted} before anything is computed{element(index)}",
            repair=OF_GIVEN_VALUES,
            index=index,
        )


def _located(operation: Operation) -> str:
    return operation.primitive + operation.place
