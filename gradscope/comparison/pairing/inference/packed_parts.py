"""`PackedParts` stores which tensors of one dump a tensor of the other is made of, joined along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import AxisLayout, layouts
from gradscope.comparison.layout.recipe_steps import Concatenate, Split
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.equal_parts import Layouts, assigned
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy
from gradscope.dump.interfaces import DumpSource


@dataclass(frozen=True, slots=True)
class PackedParts:
    """PackedParts stores which tensors a packed one is made of: `parts` in order along `axis`, all in one layout.

    `matched_by` is the pass: by values, or only by the names of others that values show.
    """

    key: str
    parts: tuple[str, ...]
    axis: int
    layout: AxisLayout
    matched_by: MatchedBy = "fingerprint"

    def matches(self, dumps: Dumps, *, of_ref: bool) -> Iterator[Match]:
        """Yields the matches of the packed tensor with its parts.

        Args:
            dumps: The dumps.
            of_ref: Whether the reference has the packed tensor.
        """
        if of_ref:
            steps = (*self.layout.steps(dumps.cand.entry(self.parts[0]).shape), Concatenate(self.axis))
            yield Match(ref=self.key, recipe=Recipe(keys=self.parts, steps=steps), matched_by=self.matched_by)
            return
        shape, count = dumps.cand.entry(self.key).shape, len(self.parts)
        own = tuple(size // count if axis == self.axis else size for axis, size in enumerate(shape))
        steps = (Split(self.axis, count), *self.layout.steps(own))
        for part, key in enumerate(self.parts):
            yield Match(ref=key, recipe=Recipe(keys=(self.key,), steps=steps, part=part), matched_by=self.matched_by)


def packed_parts(
    holder: DumpSource,
    key: str,
    count: int,
    candidates: Callable[[list[Array]], Mapping[str, Array]],
    possible: Layouts = layouts,
    *,
    of_ref: bool,
) -> PackedParts | None:
    """Returns the parts of a tensor that are found by their values; None where one is not found.

    Args:
        holder: The dump that has the tensor.
        key: Its key.
        count: The number of its parts.
        candidates: Returns the tensors that may be some blocks.
        possible: Returns the layouts to choose from.
        of_ref: Whether it is the reference that has the packed tensor.
    """
    array = holder.array(key)
    for axis in (axis for axis, size in enumerate(array.shape) if size % count == 0):
        blocks = np.split(array, count, axis=axis)
        singles = candidates(blocks)
        if len(singles) < count:
            continue
        if of_ref:
            found = assigned(blocks, singles, possible)
            if found is not None:
                return PackedParts(key, tuple(found[0]), axis, found[1])
            continue
        # The layout makes the reference's tensors of blocks: it is found from the reference's side.
        reverse = _reverse_assignment(blocks, singles, possible)
        if reverse is not None:
            return PackedParts(key, reverse[0], axis, reverse[1])
    return None


def _reverse_assignment(
    blocks: Sequence[Array], singles: Mapping[str, Array], possible: Layouts
) -> tuple[tuple[str, ...], AxisLayout] | None:
    names: list[str] = []
    common: AxisLayout | None = None
    for block in blocks:
        for name in (name for name in singles if name not in names):
            found = assigned([singles[name]], {0: block}, possible)
            if found is not None and common in (None, found[1]):
                names.append(name)
                common = found[1]
                break
    return (tuple(names), common) if common is not None and len(names) == len(blocks) else None
