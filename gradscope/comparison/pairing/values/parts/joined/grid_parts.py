"""`grid_parts` matches a tensor of one dump with tensors of the other that are joined in it along both of its axes.

The cell of an LSTM may have a kernel for each gate of the input and of the state, or one for all.
The place of each part in the joined tensor is found by its values: first where its largest element is. The parts are
all as they are, or all transposed, and make up rows and columns.

One part alone may have other values, as where a port initialises it otherwise: it is that of its shape whose name
completes those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.layout.layouts import Shape, relative_error
from gradscope.comparison.layout.recipe_steps import Concatenate, RecipeStep, Split, Transpose
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy
from gradscope.comparison.pairing.values.parts.joined.free_parts import FreeParts
from gradscope.comparison.pairing.values.parts.joined.shared_elements import joined_tolerance
from gradscope.comparison.pairing.values.parts.part_candidates import PartCandidates
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM

#: The most places that are tried for one part, of those that have its largest element.
_MOST_PLACES: Final = 16

#: The fewest rows and columns of parts, and the fewest elements of a part, whose values show its place.
_FEWEST: Final = 2


def grid_parts(dumps: Dumps, ref: Sequence[str], cand: Sequence[str]) -> Iterator[Match]:
    """Yields matches of matrices with the matrices that are joined in them, side by side and one below the other.

    Args:
        dumps: The dumps.
        ref: The reference's stored tensors without a counterpart.
        cand: The candidate's.
    """
    for grid in _found(dumps.cand, cand, dumps.ref, ref):
        for part, key in enumerate(grid.parts):
            recipe = Recipe(keys=(grid.key,), steps=grid.parting(), part=part)
            yield Match(ref=key, recipe=recipe, matched_by=grid.found_by(key))
    for grid in _found(dumps.ref, ref, dumps.cand, cand):
        if (joining := grid.joining()) is not None:
            recipe = Recipe(keys=joining[0], steps=joining[1])
            yield Match(ref=grid.key, recipe=recipe, matched_by=grid.found_by(grid.unlike))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """_Grid stores which tensors a tensor is joined of.

    Attributes:
        key: The tensor.
        parts: Its parts, row by row.
        heights: The sizes of the rows.
        widths: The sizes of the columns.
        turned: Whether the parts are transposed.
        unlike: The part that has other values; "" for none.
    """

    key: str
    parts: tuple[str, ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    turned: bool
    unlike: str

    def found_by(self, part: str) -> MatchedBy:
        """Returns the pass that finds a part."""
        return "order" if part and part == self.unlike else "fingerprint"

    def parting(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that make the parts of the tensor."""
        return Split(0, _into(self.heights)), Split(1, _into(self.widths)), *self._turning()

    def joining(self) -> tuple[tuple[str, ...], tuple[RecipeStep, ...]] | None:
        """Returns the parts in the order in which steps join them, and the steps; None where no step can."""
        rows, columns = len(self.heights), len(self.widths)
        if isinstance(_into(self.widths), int):
            by_column = (self.parts[row * columns + column] for column in range(columns) for row in range(rows))
            return tuple(by_column), (*self._turning(), Concatenate(0), Split(0, columns), Concatenate(1))
        if isinstance(_into(self.heights), int):
            return self.parts, (*self._turning(), Concatenate(1), Split(1, rows), Concatenate(0))
        return None

    def _turning(self) -> tuple[RecipeStep, ...]:
        return (Transpose((1, 0)),) if self.turned else ()


def _into(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Returns the number of parts of one size, or the sizes where they differ."""
    return len(sizes) if len(set(sizes)) == 1 else sizes


def _found(holder: DumpSource, keys: Sequence[str], other: DumpSource, singles: Sequence[str]) -> Iterator[_Grid]:
    free = FreeParts(other, filter(partial(_is_matrix, other), singles))
    corners_of = cache(partial(_corners, other))
    for key in filter(partial(_is_matrix, holder), keys):
        shape = holder.entry(key).shape
        for turned in (False, True):
            smaller = free.of(math.prod(shape), partial(_fits, whole=shape, turned=turned), least=_FEWEST**2)
            corners = [each for single in smaller for each in corners_of(single)]
            if not corners or not _has_corners(holder, key, other, smaller, corners):
                continue
            if (grid := _grid(holder, key, other, smaller, turned=turned)) is not None:
                free.remove(grid.parts)
                yield grid
                break


def _is_matrix(source: DumpSource, key: str) -> bool:
    entry = source.entry(key)
    return entry.family == PARAM and len(entry.shape) == 2 and dtype_class(entry.dtype) == "float"


def _fits(shape: Shape, _: str, *, whole: Shape, turned: bool) -> bool:
    part = shape[::-1] if turned else shape
    return all(0 < one < size for one, size in zip(part, whole, strict=True)) and math.prod(part) >= _FEWEST


def _corners(source: DumpSource, key: str) -> tuple[float, float]:
    array = wide_values(source.array(key))
    return float(array[0, 0]), float(array[-1, -1])


def _has_corners(
    holder: DumpSource, key: str, other: DumpSource, singles: Sequence[str], corners: Sequence[float]
) -> bool:
    """Returns whether a matrix has one of some numbers in a corner, which rules out almost all without another look."""
    joined = wide_values(holder.array(key))
    reach = joined_tolerance(holder.entry(key).dtype, other, singles) * float(np.abs(joined).max())
    return bool((np.abs(np.subtract.outer([joined[0, 0], joined[-1, -1]], corners)) <= reach).any())


def _grid(holder: DumpSource, key: str, other: DumpSource, singles: Sequence[str], *, turned: bool) -> _Grid | None:
    """Returns the rows and columns of parts that a tensor is joined of; None where there are none."""
    joined, parts = wide_values(holder.array(key)), {each: wide_values(other.array(each)) for each in singles}
    parts = {each: array.T for each, array in parts.items()} if turned else parts
    found = _places(joined, parts, joined_tolerance(holder.entry(key).dtype, other, singles))
    if not found:
        return None
    tops, lefts = (sorted({0, *(place[axis] for place in found)}) for axis in (0, 1))
    heights, widths = (
        tuple(np.diff([*starts, size]).tolist()) for starts, size in zip((tops, lefts), joined.shape, strict=True)
    )
    shapes = dict(zip(product(tops, lefts), product(heights, widths), strict=True))
    if min(len(heights), len(widths)) < _FEWEST or any(parts[name].shape != shapes[at] for at, name in found.items()):
        return None
    unlike, rest = "", [place for place in shapes if place not in found]
    if len(rest) == 1:
        unlike = PartCandidates(other, singles).like([*found.values()], math.prod(shapes[rest[0]])) or ""
        found |= {rest[0]: unlike} if unlike and parts[unlike].shape == shapes[rest[0]] else {}
    if len(found) < len(shapes):
        return None
    names = tuple(found[place] for place in shapes)
    return _Grid(key=key, parts=names, heights=heights, widths=widths, turned=turned, unlike=unlike)


def _places(joined: Array, parts: Mapping[str, Array], tolerance: float) -> dict[tuple[int, int], str]:
    """Returns which parts a matrix has, by the place of their first element."""
    order = np.argsort(joined, axis=None)
    ordered = joined.reshape(-1)[order]
    found: dict[tuple[int, int], str] = {}
    for name, part in parts.items():
        largest = np.unravel_index(np.abs(part).argmax(), part.shape)
        value, reach = float(part[largest]), tolerance * float(np.linalg.norm(part))
        ends = np.searchsorted(ordered, (value - reach, value + reach))
        for flat in order[ends[0] : ends[1]][:_MOST_PLACES]:
            place = np.subtract(np.unravel_index(flat, joined.shape), largest)
            at = (int(place[0]), int(place[1]))
            own = joined[at[0] : at[0] + part.shape[0], at[1] : at[1] + part.shape[1]] if min(at) >= 0 else part[:0]
            if at not in found and own.shape == part.shape and relative_error(own, part) <= tolerance:
                found[at] = name
                break
    return found
