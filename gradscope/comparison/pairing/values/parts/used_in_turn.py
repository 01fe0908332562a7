"""`UsedInTurn` finds the parts of a stack by when both programs use them, beside stacks whose parts are known.

A scan over layers has the scales of all norms of one kind as one stack, and the other program has one for each layer.
Scales that are all one have the same values wherever they are used. That the norm is between two kernels in the loop,
whose parts the values show, tells which of them are its parts: those between the same two kernels of each layer.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from gradscope.comparison.pairing.inference.packed_parts import PackedParts
from gradscope.dump.interfaces import DumpSource
from gradscope.naming.numbering import NUMBER

_NUMBER: Final = re.compile(NUMBER)


class UsedInTurn:
    """UsedInTurn knows where a program uses its stacks, and another one the parts of some of them.

    Args:
        holder: The dump that has the stacks.
        other: The dump of the parts.
        solved: The stacks whose parts are known; more may be added.
    """

    def __init__(self, holder: DumpSource, other: DumpSource, solved: Collection[PackedParts]) -> None:
        self._holder, self._other, self._solved = holder, other, solved

    def parts(self, key: str, alike: Iterable[str], singles: Iterable[str], count: int) -> list[str]:
        """Returns the parts of a stack in their order; none where their use does not show them.

        Args:
            key: The stack.
            alike: It and all others that the tensors which may be its parts may as well be of.
            singles: Those tensors.
            count: The number of parts.
        """
        known = [each for each in self._solved if self._is_stack(each, count)]
        known.sort(key=lambda each: _place(self._holder, each.key))
        turns = [[_place(self._other, each.parts[turn]) for each in known] for turn in range(count)]
        if not known or any(max(one) >= min(following) for one, following in pairwise(turns)):
            return []
        places = [_place(self._holder, each.key) for each in known]
        gap = bisect_right(places, _place(self._holder, key))
        group = {_place(self._holder, each): each for each in alike}
        group = [each for place, each in sorted(group.items()) if bisect_right(places, place) == gap]
        found = [*self._between(turns, gap, [*singles], len(group))] if key in group else []
        parts = [each[group.index(key)] for each in found]
        return parts if len({*parts}) == count and len({_NUMBER.sub("#", each) for each in parts}) == 1 else []

    def _is_stack(self, each: PackedParts, count: int) -> bool:
        shape = self._holder.entry(each.key).shape
        return len(each.parts) == count and each.cut.axis == 0 and shape[:1] == (count,)

    def _between(
        self, turns: Sequence[Sequence[int]], gap: int, singles: Iterable[str], count: int
    ) -> Iterator[Sequence[str]]:
        """Yields the tensors between the same two known stacks of each iteration, where these are as many as expected.

        Args:
            turns: The places of the known parts of each iteration, in the order of the stacks.
            gap: The number of known stacks before.
            singles: The tensors.
            count: The number expected.
        """
        ordered = sorted(singles, key=lambda each: _place(self._other, each))
        for number, turn in enumerate(turns):
            before = turn[:gap] or (turns[number - 1] if number else ())
            behind = turn[gap:] or (turns[number + 1] if number + 1 < len(turns) else ())
            start, stop = max(before, default=-math.inf), min(behind, default=math.inf)
            between = [each for each in ordered if start <= _place(self._other, each) < stop]
            if len(between) == count or (len(between) > count and gap in (0, len(turn))):
                # Before the first stack of a loop, and behind its last one, there may be what is outside of it.
                yield between[:count] if gap else between[-count:]


def _place(source: DumpSource, key: str) -> int:
    return source.entry(key).site.index
