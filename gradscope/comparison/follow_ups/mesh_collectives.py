"""`MeshCollectives` are those of a program, of which each value has passed some on its way through the devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.manifest.operation_facts import Collective
from gradscope.naming import is_gradient
from gradscope.naming.paths import without_iterations
from gradscope.primitive_groups import ADDITIONS, COPIES

#: How far a factor may be from a number of devices, relative to it.
_NEAR: Final = 1e-3


#: Collectives that add up what the devices have; a mean divides by their number as well.
_SUMS: Final = frozenset({"psum", "psum_invariant", "psum_scatter", "reduce_scatter"})

#: Operations of which the sum over devices is that of their operands.
_ADDING: Final = ADDITIONS | COPIES | {"neg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCollectives:
    """`MeshCollectives` are the collectives of a program, in order.

    Attributes:
        collectives: The collectives.
        mesh: How many times more devices there are along each axis that may be at fault.
    """

    collectives: Sequence[Collective]
    mesh: Mapping[str, int]

    def passed(self, row: ComparisonRow) -> Sequence[Collective]:
        """Returns the collectives that a row has passed, the last first, and those in its own layer before others."""
        layer = without_iterations(row.name)
        if is_gradient(row.family):
            found = [each for each in self.collectives if each.index >= row.index or each.layer == layer]
        else:
            found = [each for each in reversed(self.collectives) if each.index <= row.index or each.layer == layer]
        return sorted(found, key=lambda each: each.layer != layer)

    def nearest(self, row: ComparisonRow, axis: str) -> Collective | None:
        """Returns the collective over an axis that is passed last on the way to a row."""
        return next(over_axis(axis, self.passed(row)), None)

    def adds_up(self, row: ComparisonRow, axis: str, layers: Iterable[Layer]) -> bool:
        """Returns whether a sum over an axis is behind a row, and no layer begins in between; a mean is none.

        Args:
            row: The row.
            axis: The axis.
            layers: The program's layers; operations do not count.
        """
        behind = next(over_axis(axis, (each for each in self.collectives if each.index > row.index)), None)
        # What each device adds before a mean is in that once.
        return (
            behind is not None
            and behind.function == "psum"
            and not any(row.index < layer.index <= behind.index for layer in layers if not layer.operation)
        )

    def adds_up_at_once(self, name: str, axis: str, layers: Sequence[Layer]) -> bool:
        """Returns whether all that reads a value adds it up over an axis, behind nothing but additions and copies.

        Args:
            name: The name of the value.
            axis: The axis.
            layers: The program's layers. Only its operations show what reads a value.
        """
        operations = [layer for layer in layers if layer.operation]
        sums = {each.index for each in over_axis(axis, self.collectives) if each.function in _SUMS}
        waiting, seen = [name], {name}
        while waiting:
            value = waiting.pop()
            readers = [layer for layer in operations if value in layer.inputs]
            for reader in readers:
                if reader.index in sums:
                    continue
                if reader.primitive not in _ADDING:
                    return False
                waiting += [each for each in reader.outputs if each not in seen]
                seen.update(reader.outputs)
            if not readers:
                return False
        return True

    def axes_of(self, factor: float, passed: Sequence[Collective]) -> str:
        """Returns the axes that have as many devices as a factor, or its inverse; of several, those passed last."""
        some = [each for count in range(1, len(self.mesh) + 1) for each in combinations(self.mesh, count)]
        sizes = {axes: math.prod(self.mesh[axis] for axis in axes) for axes in some}
        fitting = [
            axes for axes in some if any(abs(each - sizes[axes]) < _NEAR * each for each in (factor, 1 / factor))
        ]
        over = [{*each.axes} for each in passed]
        fitting.sort(key=lambda axes: over.index({*axes}) if {*axes} in over else len(over))
        return ",".join(fitting[0]) if fitting else ""


def over_axis(axis: str, some: Iterable[Collective]) -> Iterator[Collective]:
    """Returns those of some collectives that are over an axis, or one of several that are joined by commas."""
    axes = {*axis.split(",")}
    return (each for each in some if axes.intersection(each.axes))


def likely_first(factor: float, passed: Sequence[Collective]) -> list[Collective]:
    """Returns the collectives that may have made a factor first: a sum makes a value larger, a mean smaller."""
    return sorted(passed, key=lambda each: (each.function == "pmean") is (factor > 1))
