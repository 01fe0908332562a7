"""Births are where values that are not finite began, found by going back from values that are made of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from gradscope.capturing.explain.nonfinite.causes.forward_causes import is_mask
from gradscope.capturing.explain.nonfinite.gradient_paths import behind
from gradscope.capturing.explain.nonfinite.nonfinite_flags import INF, NAN, NonfiniteFlags, is_argument
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.operations import Operation, Operations

#: Primitives that may put a number in the place of one that is not finite, as `nan_to_num` and `clip` do.
_REPLACING: Final = frozenset({"select_n", "clamp", "min", "max"})


class Birth(NamedTuple):
    """A `Birth` is a value that is not finite although nothing that it is made of is.

    It may be *stated*: an infinity that the program has as a constant, or an argument.
    """

    value: ValueAt
    stated: bool


class Births:
    """`Births` are those of one run.

    Args:
        operations: The operations of the loss.
        flags: Which values are not finite.
    """

    def __init__(self, operations: Operations, flags: NonfiniteFlags) -> None:
        self._operations = operations
        self._flags = flags

    def of(self, start: ValueAt) -> Birth:
        """Returns the earliest value before another, or itself, that is not finite although its operands are."""
        found: dict[ValueAt, None] = {}
        seen, waiting = {start}, [(start, NAN if self._flags.value(start) & NAN else INF)]
        while waiting:
            value_at, kind = waiting.pop()
            culprits = self._operands(value_at, kind)
            if not culprits and (culprits := self._lost_behind(value_at)):
                kind = NAN
            if not culprits:
                found[value_at] = None
            waiting += [(each, kind) for each in culprits if each not in seen]
            seen.update(culprits)
        births = [Birth(value_at, self._is_stated(value_at)) for value_at in found]
        return min(births, key=lambda birth: (not birth.stated, self._flags.rank(birth.value)))

    def replaced(self, operation: Operation) -> tuple[Operation, Birth] | None:
        """Returns what makes an operand of an operation finite again, and the birth of what was not; None for none.

        An infinity that the program states, as a mask does, is meant to be replaced.
        """
        waiting = [each for each in operation.values if not self._flags.value(each)]
        while waiting:
            value_at = waiting.pop()
            if value_at.value.equation == OPERAND:
                continue
            maker = self._operations.maker(value_at)
            if maker.primitive not in _REPLACING:
                continue
            for each in maker.values:
                if not self._flags.value(each):
                    waiting.append(each)
                elif not (birth := self.of(each)).stated and birth.value.value.equation != OPERAND:
                    return maker, birth
        return None

    def _operands(self, value_at: ValueAt, kind: int) -> list[ValueAt]:
        return [each for each in behind(self._operations, value_at) if self._flags.value(each) & kind]

    def _lost_behind(self, value_at: ValueAt) -> list[ValueAt]:
        """Returns the NaNs in the place of which there are the infinities that a value is made of, or is."""
        # A maximum of NaNs is a NaN, but XLA's on a CPU, over windows, is minus infinity, with which it begins.
        found: list[ValueAt] = []
        waiting = [value_at] if self._flags.value(value_at) == INF else self._operands(value_at, INF)
        seen = {*waiting}
        while waiting:
            infinite = waiting.pop()
            operands = self._operands(infinite, INF)
            if not operands and not self._is_replaced(infinite):
                found += self._operands(infinite, NAN)
            waiting += [each for each in operands if each not in seen]
            seen.update(operands)
        return found

    def _is_replaced(self, value_at: ValueAt) -> bool:
        """Returns whether an infinity may be meant to stand in the place of a NaN."""
        if value_at.value.equation == OPERAND or self._is_stated(value_at):
            return True
        return self._operations.maker(value_at).primitive in _REPLACING

    def _is_stated(self, value_at: ValueAt) -> bool:
        """Returns whether a value that is not finite was made of a constant, or given, as an infinity."""
        if self._flags.value(value_at) & NAN:
            return False
        if is_argument(value_at.value):
            return True
        operands = self._operations.maker(value_at).operands
        return any(is_mask(each) for each in operands if not isinstance(each, ValueAt))
