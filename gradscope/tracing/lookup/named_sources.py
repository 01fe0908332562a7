"""`NamedSources` finds the nearest named values that a value is computed from, through the values without a name.

Layers name the values that leave them. Between two layers a program can compute more, such as a residual sum outside
all scopes, and a layer can compute its output from those of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey
from gradscope.tracing.jaxpr.iterations import ValueAt, sources, values_at


class NamedSources:
    """`NamedSources` finds the nearest named values that a value is computed from.

    Args:
        frames: Every frame of a trace.
        names: The keys of values, each in one iteration of the loops around it.
    """

    def __init__(self, frames: Mapping[FrameKey, Frame], names: Mapping[ValueAt, str]) -> None:
        self._frames = frames
        self._names = names
        self._known: dict[ValueAt, tuple[str, ...]] = {}
        # What a loop without names computes is one step: it may have a million iterations.
        self._with_names = {key for at in names for key in accumulate(((each,) for each in at.value.frame), initial=())}

    def of(self, at: ValueAt) -> tuple[str, ...]:
        """Returns the keys of the nearest named values that a value is computed from, itself not among them."""
        waiting = [at]
        while waiting:
            value = waiting[-1]
            if value in self._known:
                waiting.pop()
                continue
            makers = list(self._makers(value))
            fresh = [each for each in makers if each not in self._names and each not in self._known]
            waiting += fresh
            if not fresh:
                self._known[value] = tuple(dict.fromkeys(key for each in makers for key in self._keys(each)))
                waiting.pop()
        return self._known[at]

    def _keys(self, at: ValueAt) -> tuple[str, ...]:
        return (self._names[at],) if at in self._names else self._known[at]

    def _makers(self, at: ValueAt) -> Iterator[ValueAt]:
        """Yields the values that a value is, is sliced or stacked from, or that an equation makes it of."""
        frame, number = self._frames[at.value.frame], at.value.equation
        entered = number == OPERAND or any(each.key in self._with_names for each in frame.children.get(number, ()))
        found = sources(self._frames, at) if entered else []
        yield from found
        if not found and number != OPERAND:
            for atom in frame.jaxpr.eqns[number].invars:
                yield from values_at(frame, atom, at.iteration)
