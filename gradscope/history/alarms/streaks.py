"""Conditions that hold at several recorded steps in a row, and how alarms name the tensors of which they hold alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Recorded steps in a row at which a condition has to hold: a single one may be the schedule's or the batch's.
IN_A_ROW: Final = 3

#: The most names of tensors that an alarm is about, too, beside the one that it names first.
_NAMED: Final = 3


@dataclass(slots=True)
class Streak:
    """A `Streak` counts how many times in a row a condition held, for each name."""

    lengths: dict[str, int] = field(default_factory=dict[str, int])

    def reached(self, holds: Mapping[str, bool], length: int, *, waiting: Collection[str] = ()) -> list[str]:
        """Returns those for which it holds this many times in a row just now.

        Args:
            holds: Whether the condition holds, by name.
            length: The number of times.
            waiting: Those of which this time does not count.
        """
        kept = {name: each for name, each in self.lengths.items() if name in waiting}
        counted = {name: self.lengths.get(name, 0) + 1 for name, each in holds.items() if each and name not in waiting}
        self.lengths = kept | counted
        return [name for name, each in counted.items() if each == length]


def others_alike(named: str, alike: Sequence[str]) -> str:
    """Returns a clause about those that are like the one that is named: their names, or how many they are.

    Args:
        named: The one that is named.
        alike: All of them.
    """
    others = [each for each in alike if each != named]
    if len(others) > _NAMED:
        return f", and {len(others):,} others too"
    return f", and {' and '.join(filter(None, [', '.join(others[:-1]), others[-1]]))} too" if others else ""
