"""`Step` is a step that only one of the programs has: the row of its value, and the layer that computes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import key_of


@dataclass(frozen=True, slots=True)
class Step:
    """Step stores a row of a step, with the innermost layer that computes it."""

    row: ComparisonRow
    layer: Layer
    of_ref: bool

    @property
    def key(self) -> str:
        """The key of its value."""
        return key_of(self.row.family, self.row.name)


class Found(NamedTuple):
    """Found has the suspects, the likeliest first, and the steps that may be wrong all the same.

    Attributes:
        suspects: The suspects; none where the layer of the divergence is at fault.
        unknown: The steps of which it is not known that they are right.
        made_before: As for `Blame`.
    """

    suspects: Sequence[Step]
    unknown: Sequence[Step]
    made_before: bool = False


def steps_of(dumps: Dumps, rows: Sequence[ComparisonRow]) -> list[Step]:
    """Returns the steps of rows, in execution order, those of the reference first."""
    makers = {True: makers_of(dumps.ref.manifest.layers), False: makers_of(dumps.cand.manifest.layers)}
    found = [
        Step(row, layer, row.status == "missing")
        for row in rows
        if (layer := makers[row.status == "missing"].get(row.name)) is not None
    ]
    return sorted(found, key=lambda step: (not step.of_ref, step.row.index))


def makers_of(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Returns the innermost layer that computes each value, by name; a part comes after the layer around it."""
    return {name: layer for layer in layers for name in layer.outputs}


def with_words(step: Step, words: str, other: str, side: str) -> Step:
    """Returns a step with what it computes, and what the other program computes in its place."""
    likely = f"the {words} of what it reads, and in the {side} the {other}"
    return replace(step, row=replace(step.row, likely=likely))


def is_inside(layers: Sequence[Layer], layer: Layer, around: Collection[str]) -> bool:
    """Returns whether a layer is a part of one of others, at any depth."""
    parents: Mapping[str, str | None] = {each.path: each.parent for each in layers}
    seen: set[str] = set()
    path = layer.parent
    while path is not None and path not in seen:
        if path in around:
            return True
        seen.add(path)
        path = parents.get(path)
    return False
