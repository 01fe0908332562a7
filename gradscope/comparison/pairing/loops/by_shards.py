"""`by_shards` matches the values of one device, or of a few, with those of the shards of a mesh that has more.

What the shards have follows from shapes and from which of them have equal values; where that leaves a choice, the
layout is used that makes what is closest to the value. Copies that differ are no copies: where neither their sum nor
their mean is the value, that shard is compared that is furthest from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, combinations, product
from typing import Final

import numpy as np

from gradscope.arrays.widening import as_reals
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.shard_groups import ShardGroup, divides, shard_groups
from gradscope.comparison.pairing.loops.shard_layouts import TERMS, ShardLayout, shard_layouts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.errors import MissingKeyError
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key

#: How far, relative to a value, terms may be from it that count as those of its sum: rounding of the narrowest types.
_NEAR: Final = 0.05


def by_shards(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations, and of their gradients, with those of the candidate's shards that divide them."""
    if not divides(dumps.ref, dumps.cand):
        return
    free = frozenset(unmatched.only_ref), frozenset(unmatched.only_cand)
    for match in shard_matches(dumps.ref, dumps.cand, unmatched.only_cand):
        if match.ref in free[0] and free[1].issuperset(match.recipe.keys):
            yield match


def with_shards(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with activations of the candidate, and their gradients, paired with the reference's shards.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
    """
    if not divides(dumps.cand, dumps.ref):
        return pairing
    stated = [each for each in pairing.matched if each.matched_by == "map"]
    free = (
        frozenset(dumps.cand.keys()).difference(*(each.recipe.keys for each in stated)),
        frozenset(dumps.ref.keys()).difference(each.ref for each in stated),
    )
    found = [
        match
        for match in shard_matches(dumps.cand, dumps.ref, dumps.ref.keys())
        if match.ref in free[0] and free[1].issuperset(match.recipe.keys)
    ]
    used = {match.ref for match in found}, {key for match in found for key in match.recipe.keys}
    others = [each for each in pairing.matched if each.ref not in used[1] and used[0].isdisjoint(each.recipe.keys)]
    return Pairing.of(dumps, others, [*pairing.inverse, *found])


def shard_matches(one: DumpSource, several: DumpSource, keys: Sequence[str]) -> Iterator[Match]:
    """Yields matches of activations and their gradients with recipes over those of shards.

    Args:
        one: The dump of one device, or of a few.
        several: The dump of more.
        keys: Keys of `several`.
    """
    for group in shard_groups(one, several, keys):
        for shards, layout in _laid_out(one, several, group):
            yield shards.match(layout)


def layout_of(one: DumpSource, several: DumpSource, group: ShardGroup, family: str) -> ShardLayout | None:
    """Returns the layout of the activations of a group of shards, or of their gradients; None where none fits.

    Args:
        one: The dump of one device, or of a few.
        several: The dump of more.
        group: The group.
        family: The family.
    """
    laid_out = _laid_out(one, several, group)
    return next((layout for shards, layout in laid_out if shards.family == family), None)


def _laid_out(one: DumpSource, several: DumpSource, group: ShardGroup) -> Iterator[tuple[_Shards, ShardLayout]]:
    """Yields the values of a group of shards, then their gradients, each with its layout, as far as one fits."""
    values, gradients = (_Shards(one, several, group, family) for family in (ACTIVATION, ACTIVATION_GRAD))
    if (layout := values.layout([*values.layouts()])) is None:
        return
    yield values, layout
    # A gradient is divided as its value is.
    found = gradients.layout([each for each in gradients.layouts() if each.sliced == layout.sliced])
    if found is not None:
        yield gradients, found


class _Shards:
    """_Shards are the values of a group of shards, or their gradients.

    Args:
        one: The dump of one device, or of a few.
        several: The dump of more.
        group: The group.
        family: The family of the tensors.

    Attributes:
        family: The same.
    """

    def __init__(self, one: DumpSource, several: DumpSource, group: ShardGroup, family: str) -> None:
        self.family = family
        self._one = one
        self._several = several
        self._whole = key_of(family, split_key(group.whole)[1])
        self._parts = tuple(key_of(family, split_key(part)[1]) for part in group.parts)
        self._sizes = tuple(group.axes.values())
        self._known: dict[ShardLayout, list[float]] = {}

    def layouts(self) -> Iterator[ShardLayout]:
        """Yields the layouts that the shapes allow; none where a tensor is absent."""
        try:
            whole, *parts = (self._one.entry(self._whole), *map(self._several.entry, self._parts))
        except MissingKeyError:
            return
        shape = parts[0].shape
        if all(each.shape == shape for each in parts) and not any(each.absent for each in (whole, *parts)):
            yield from shard_layouts(whole.shape, shape, self._sizes)

    def layout(self, found: Sequence[ShardLayout]) -> ShardLayout | None:
        """Returns the layout that fits the values best; None without layouts."""
        equal = [each for each in found if not self._unequal(each)]
        if len(equal) == 1 and (self.family == ACTIVATION or self._has_power(equal[0])):
            return equal[0]
        if not found or not self._is_readable:
            return next(iter((*equal, *found)), None)
        copies = min(equal or found, key=self._error)
        if self.family == ACTIVATION and equal:  # equal values are no terms of a sum
            return copies
        best = min((copies, *self._of_terms(found)), key=self._error)
        return best if self._error(best) <= _NEAR else copies

    def _of_terms(self, found: Sequence[ShardLayout]) -> Iterator[ShardLayout]:
        """Yields layouts that have terms where shards that should have copies differ, or where they have shares."""
        if dtype_class(self._one.entry(self._whole).dtype) != "float":
            return
        for layout, word in product(found, TERMS):
            unequal, numbers = self._unequal(layout), range(1, len(layout.copied) + 1)
            for axes in chain.from_iterable(combinations(layout.copied, count) for count in numbers):
                if {*axes}.issuperset(unequal):
                    yield layout.with_terms(axes, word)

    def match(self, layout: ShardLayout) -> Match:
        """Returns the match by a layout."""
        steps, part = layout.steps(), 0
        if self._unequal(layout):
            part = self._furthest(layout)
        recipe = Recipe(keys=self._parts, steps=steps, part=part)
        return Match(ref=self._whole, recipe=recipe, matched_by="shards")

    @property
    def _is_readable(self) -> bool:
        return self._one.has_tensor(self._whole) and all(map(self._several.has_tensor, self._parts))

    def _has_power(self, layout: ShardLayout) -> bool:
        """Returns whether the mean square of what a layout makes is that of the value, as far as that is known."""
        whole, *parts = (
            as_float(source.entry(source.resolve(key)).stats.get("rms", math.nan)) ** 2
            for source, keys in ((self._one, (self._whole,)), (self._several, self._parts))
            for key in keys
        )
        difference = abs(sum(parts) / len(parts) - whole)
        return layout.copied == () or not difference > _NEAR * whole

    def _unequal(self, layout: ShardLayout) -> list[int]:
        """Returns the axes of the mesh along which shards that should have copies differ."""
        return [axis for axis in layout.copied if axis in self._varying]

    @cached_property
    def _varying(self) -> frozenset[int]:
        """The axes of the mesh along which shards differ."""
        values = [self._values_of(number) for number in range(len(self._parts))]
        firsts = np.array([values.index(each) for each in values]).reshape(self._sizes)
        return frozenset(axis for axis in range(firsts.ndim) if (firsts != firsts.take([0], axis)).any())

    def _values_of(self, number: int) -> Json:
        """Returns what identifies the values of a shard: their hash, or else their statistics; else its number."""
        stats = self._several.entry(self._several.resolve(self._parts[number])).stats
        return stats.get("hash") or dict(stats) or number

    def _error(self, layout: ShardLayout) -> float:
        """Returns how far what a layout makes is from the value, relative to it: of copies, the furthest."""
        return max(self._errors(layout), default=math.inf)

    def _furthest(self, layout: ShardLayout) -> int:
        errors = self._errors(layout)
        return max(range(len(errors)), key=errors.__getitem__, default=0)

    def _errors(self, layout: ShardLayout) -> list[float]:
        if layout not in self._known:
            self._known[layout] = self._computed_errors(layout) if self._is_readable else []
        return self._known[layout]

    def _computed_errors(self, layout: ShardLayout) -> list[float]:
        whole = as_reals(self._one.array(self._whole))
        made = Recipe(keys=self._parts, steps=layout.steps()).results(list(map(self._several.array, self._parts)))
        size = float(np.linalg.norm(whole)) or 1.0
        distances = (float(np.linalg.norm(as_reals(each) - whole)) / size for each in made)
        return [distance if math.isfinite(distance) else math.inf for distance in distances]
