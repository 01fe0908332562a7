"""Gradient paths lead gradients back to the arguments; one that ends in a mask or in an integer is no evidence.

What a dump knows of gradients says where to look for the first that is not finite: not closer to the arguments than the
first one known, and not where every way to an argument leads through a gradient that is finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gradscope.capturing.explain.nonfinite.nonfinite_flags import NonfiniteFlags, is_argument
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.lookup.operations import Operations

#: Operations that return a gradient which is not finite to every operand that has one, if they receive one.
_PASSING: Final = COPIES | ADDITIONS | MULTIPLICATIONS | {
    "conv_general_dilated", "cos", "cumsum", "dot_general", "erf", "exp", "exp2", "log", "log1p", "log2", "logistic",
    "neg", "reduce_sum", "rev", "rsqrt", "sin", "slice", "sqrt", "square", "tanh",
}  # fmt: skip


class GradientPaths:
    """`GradientPaths` finds which gradients that are not finite go on to an argument.

    Args:
        flags: What is not finite.
        operations: All operations.
    """

    def __init__(self, flags: NonfiniteFlags, operations: Operations) -> None:
        self._flags = flags
        self._operations = operations
        self._reaches_bad = any(is_argument(value_at.value) for value_at in flags.bad_gradients())
        self._dead: set[ValueAt] = set()
        self._alive: set[ValueAt] = set()

    def evidence(self) -> Iterator[ValueAt]:
        """Yields the values whose gradient is not finite and goes on to an argument, the closest to the loss first.

        Where the gradient of some argument is not finite, only the gradients that make it so are yielded.
        """
        for value_at in sorted(self._flags.bad_gradients(), key=self._flags.rank, reverse=True):
            if self.arrives(value_at):
                yield value_at

    def arrives(self, start: ValueAt) -> bool:
        """Returns whether a gradient goes on to an argument, as far as is known of the gradients on the way."""
        seen, waiting = {start}, [start]
        while waiting:
            value_at = waiting.pop()
            if is_argument(value_at.value) or value_at in self._alive:
                self._alive.add(start)
                return True
            further = self.onward(value_at)
            waiting += [each for each in further if each not in seen and each not in self._dead]
            seen.update(further)
        self._dead |= seen
        return False

    def onward(self, value_at: ValueAt) -> list[ValueAt]:
        """Returns the values to which the gradient of a value goes on, as far as is known of theirs."""
        return [each for each in behind(self._operations, value_at) if self._goes_on(each)]

    def _goes_on(self, value_at: ValueAt) -> bool:
        if not self._flags.may_have_gradient(value_at):
            return False
        observed = self._flags.has_gradient(value_at)
        return not (self._reaches_bad and observed and not self._flags.gradient(value_at))


def observe_suspects(flags: NonfiniteFlags, operations: Operations) -> None:
    """Observes the gradients among which the first that is not finite is, and the values that are read there.

    Args:
        flags: What is known; receives what is observed.
        operations: All operations.
    """
    paths = GradientPaths(flags, operations)
    known = next(paths.evidence(), None)
    if known is None:
        flags.observe_all_gradients()
        return
    rank = flags.rank(known)
    suspects = [each for each in flags.unknown_gradients() if flags.rank(each) >= rank and paths.arrives(each)]
    read = {value for each in (known, *suspects) for use in operations.readers(each) for value in use.values}
    on_the_way = _may_end(paths, flags, operations, [known, *suspects])
    flags.observe({each.value for each in (*suspects, *on_the_way)}, {each.value for each in read})


def _may_end(
    paths: GradientPaths, flags: NonfiniteFlags, operations: Operations, starts: Sequence[ValueAt]
) -> Iterator[ValueAt]:
    """Yields the values behind others whose gradient may be finite although the one that theirs is made of is not."""
    seen, waiting = set(starts), list(starts)
    while waiting:
        value_at = waiting.pop()
        further = paths.onward(value_at)
        passing = not sources(operations.frames, value_at) and _passes(operations, value_at)
        yield from (each for each in further if not passing and not flags.has_gradient(each))
        waiting += [each for each in further if each not in seen]
        seen.update(further)


def _passes(operations: Operations, value_at: ValueAt) -> bool:
    if value_at.value.equation == OPERAND:
        return False
    return operations.maker(value_at).primitive in _PASSING


def behind(operations: Operations, value_at: ValueAt) -> list[ValueAt]:
    """Returns the values from which a value is made: in loops and branches, or the operands of its equation."""
    if is_argument(value_at.value):
        return []
    found = sources(operations.frames, value_at)
    return found if found or value_at.value.equation == OPERAND else operations.maker(value_at).values
