"""The ways that gradients take back to the arguments: one that ends in a mask or in an integer is no evidence."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.capturing.explain.nonfinite.nonfinite_flags import NonfiniteFlags, is_argument
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.lookup.operations import Operations


class GradientPaths:
    """`GradientPaths` tells which gradients that are not finite go on to an argument.

    Args:
        flags: What is not finite.
        operations: All operations.
    """

    def __init__(self, flags: NonfiniteFlags, operations: Operations) -> None:
        self._flags = flags
        self._operations = operations
        self._reaches_bad = any(is_argument(value_at.value) for value_at in flags.bad_gradients())
        self._dead: set[ValueAt] = set()

    def evidence(self) -> Iterator[ValueAt]:
        """Yields the values whose gradient is not finite and goes on to an argument, the closest to the loss first.

        Where the gradient of some argument is not finite, only the gradients that make it so are yielded.
        """
        for value_at in sorted(self._flags.bad_gradients(), key=self._flags.rank, reverse=True):
            if self._arrives(value_at):
                yield value_at

    def _arrives(self, start: ValueAt) -> bool:
        seen, waiting = {start}, [start]
        while waiting:
            value_at = waiting.pop()
            if is_argument(value_at.value):
                return True
            further = [each for each in behind(self._operations, value_at) if self._goes_on(each)]
            waiting += [each for each in further if each not in seen and each not in self._dead]
            seen.update(further)
        self._dead |= seen
        return False

    def _goes_on(self, value_at: ValueAt) -> bool:
        if not self._flags.may_have_gradient(value_at):
            return False
        observed = self._flags.has_gradient(value_at)
        return not (self._reaches_bad and observed and not self._flags.gradient(value_at))


def behind(operations: Operations, value_at: ValueAt) -> list[ValueAt]:
    """Returns the values from which a value is made: in loops and branches, or the operands of its equation."""
    if is_argument(value_at.value):
        return []
    found = sources(operations.frames, value_at)
    return found if found or value_at.value.equation == OPERAND else operations.maker(value_at).values
