"""Placing: the reference's tensors where, and as, the candidate has them; a pairing read backwards.

Every step of a recipe only moves elements about. So a recipe is done to the numbers of the elements, and then it is
known from where in the candidate's tensors each element of the reference's came: that is where it goes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Reason


class Placing:
    """The reference's tensors by the candidate's keys.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        inverse: Keys of the candidate, and what of the reference makes them.
    """

    def __init__(self, dumps: Dumps, matches: Iterable[Match], inverse: Iterable[Match] = ()) -> None:
        self._dumps = dumps
        self._made = {dumps.cand.resolve(match.ref): match.recipe for match in inverse}
        self._matches: defaultdict[str, list[Match]] = defaultdict(list)
        for match in matches:
            for key in match.recipe.keys:
                self._matches[dumps.cand.resolve(key)].append(match)

    def array(self, key: str) -> Array | None:
        """What the reference has for a tensor of the candidate, in the candidate's layout and dtype.

        Args:
            key: The candidate's key; an alias stands for what it names.

        Returns:
            The array; None where the reference lacks any part of it, or has other kinds of numbers there.

        Raises:
            DumpError: A tensor of the reference is damaged.
        """
        own = self._dumps.cand.resolve(key)
        entry = self._dumps.cand.entry(own)
        if own in self._made:
            return self._of_turns(self._made[own], entry)
        matches = [match for match in self._matches[own] if self._usable(match.ref, entry)]
        plain = next((match for match in matches if match.recipe.plain), None)
        if plain is not None:
            whole = self._dumps.ref.array(plain.ref)
            return _converted(whole, entry) if whole.shape == entry.shape else None
        return self._scattered(own, entry, matches)

    def absent(self, key: str) -> Reason | None:
        """Why the reference has no tensor for one of the candidate's, as far as it says.

        Args:
            key: As for `array`.
        """
        matches = self._matches[self._dumps.cand.resolve(key)]
        entries = (self._dumps.ref.entry(self._dumps.ref.resolve(match.ref)) for match in matches)
        return next((entry.absent for entry in entries if entry.absent is not None), None)

    def _of_turns(self, recipe: Recipe, entry: Entry) -> Array | None:
        """What the reference's turns make of a loop's output."""
        if not all(self._usable(key, entry) for key in recipe.keys):
            return None
        return _converted(recipe.array(self._dumps.ref), entry)

    def _usable(self, key: str, entry: Entry) -> bool:
        ref = self._dumps.ref
        return ref.has_tensor(key) and comparable(ref.entry(ref.resolve(key)).dtype, entry.dtype)

    def _scattered(self, own: str, entry: Entry, matches: Sequence[Match]) -> Array | None:
        """A tensor put together of those that were cut or stacked from it."""
        whole = np.zeros(math.prod(entry.shape), as_numpy_dtype(entry.dtype))
        known = np.zeros(whole.size, np.bool_)
        for match in matches:
            part, places = self._dumps.ref.array(match.ref), self._places(match, own)
            if part.shape == places.shape:
                here = places >= 0
                whole[places[here]] = _converted(part[here], entry)
                known[places[here]] = True
        return whole.reshape(entry.shape) if matches and known.all() else None

    def _places(self, match: Match, own: str) -> Array:
        """For each element of the reference's tensor, which element of one of the candidate's it is; -1 for none."""

        def numbers(key: str) -> Array:
            resolved = self._dumps.cand.resolve(key)
            shape = self._dumps.cand.entry(resolved).shape
            return np.arange(math.prod(shape)).reshape(shape) if resolved == own else np.full(shape, -1)

        return match.recipe.made_of(list(map(numbers, match.recipe.keys)))


def _converted(array: Array, entry: Entry) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(as_numpy_dtype(entry.dtype), copy=False)
