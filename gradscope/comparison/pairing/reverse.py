"""`ReversePairing` returns the reference's values of the candidate's tensors, in the candidate's layout and dtype.

A recipe makes a tensor of the reference from tensors of the candidate, and most only move elements. Applied to an array
of element numbers, such a recipe shows where in the candidate's tensors each element of the result comes from. The
reverse pairing copies the reference's elements to those positions. A sum has no reverse.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Reason
from gradscope.naming import gradient_key


def with_layouts_of_values(dumps: Dumps, matches: Sequence[Match]) -> Iterator[Match]:
    """Yields matches, those of gradients that a dump lacks with the layout of the values that they are gradients of.

    No layout is inferred for a gradient that does not arrive in one program: its values would tell. A layer that runs
    by itself may have it nevertheless.
    """
    values = (match for match in matches if len(match.recipe.keys) == 1 and match.recipe.steps)
    steps = {(gradient_key(match.ref), gradient_key(match.cand)): match.recipe.steps for match in values}
    for match in matches:
        own = steps.get((match.ref, match.cand)) if match.recipe.as_stored else None
        if own is not None and (dumps.ref.entry(match.ref).absent or dumps.cand.entry(match.cand).absent):
            yield replace(match, recipe=replace(match.recipe, steps=own))
        else:
            yield match


class ReversePairing:
    """ReversePairing returns tensors of the reference by keys of the candidate.

    Args:
        dumps: The dumps.
        matches: Their matches.
        inverse: Matches of keys of the candidate with recipes over keys of the reference.
    """

    def __init__(self, dumps: Dumps, matches: Iterable[Match], inverse: Iterable[Match] = ()) -> None:
        self._dumps = dumps
        self._known = frozenset(dumps.cand.keys())
        self._made = {dumps.cand.resolve(match.ref): match.recipe for match in inverse}
        self._matches: defaultdict[str, list[Match]] = defaultdict(list)
        for match in matches:
            for key in match.recipe.keys if match.recipe.only_moves else ():
                self._matches[dumps.cand.resolve(key)].append(match)

    def array(self, key: str) -> Array | None:
        """Returns the reference's values of a tensor of the candidate, in the candidate's layout and dtype.

        Args:
            key: The candidate's key; an alias is resolved to its owner.

        Returns:
            The array; None where the candidate has no such tensor, or the reference lacks any part of it or has a dtype
            of another kind.

        Raises:
            DumpError: A tensor of the reference is damaged.
        """
        if key not in self._known:
            return None
        own = self._dumps.cand.resolve(key)
        entry = self._dumps.cand.entry(own)
        if own in self._made:
            return self._of_inverse(self._made[own], entry)
        matches = [match for match in self._matches[own] if self._usable(match.ref, entry)]
        plain = next((match for match in matches if match.recipe.plain), None)
        if plain is not None:
            array = self._dumps.ref.array(plain.ref)
            return _converted(array, entry) if array.shape == entry.shape else None
        return self._scattered(own, entry, matches)

    def absent(self, key: str) -> Reason | None:
        """Returns the reason why the reference has no tensor for one of the candidate's; None where there is none.

        Args:
            key: The candidate's key, as for `array`.
        """
        matches = self._matches[self._dumps.cand.resolve(key)]
        entries = (self._dumps.ref.entry(self._dumps.ref.resolve(match.ref)) for match in matches)
        return next((entry.absent for entry in entries if entry.absent is not None), None)

    def _of_inverse(self, recipe: Recipe, entry: Entry) -> Array | None:
        """Returns what the recipe of an inverse match makes of the reference's tensors."""
        if not all(self._usable(key, entry) for key in recipe.keys):
            return None
        return _converted(recipe.array(self._dumps.ref), entry)

    def _usable(self, key: str, entry: Entry) -> bool:
        ref = self._dumps.ref
        return ref.has_tensor(key) and comparable(ref.entry(ref.resolve(key)).dtype, entry.dtype)

    def _scattered(self, own: str, entry: Entry, matches: Sequence[Match]) -> Array | None:
        """Returns a tensor assembled from the reference's tensors that recipes make of it."""
        flat = np.zeros(math.prod(entry.shape), as_numpy_dtype(entry.dtype))
        known = np.zeros(flat.size, np.bool_)
        for match in matches:
            part, positions = self._dumps.ref.array(match.ref), self._positions(match, own)
            if part.shape == positions.shape:
                own_elements = positions >= 0
                flat[positions[own_elements]] = _converted(part[own_elements], entry)
                known[positions[own_elements]] = True
        return flat.reshape(entry.shape) if matches and known.all() else None

    def _positions(self, match: Match, own: str) -> Array:
        """Returns for each element of the reference's tensor its position in the candidate's; -1 for other tensors."""

        def numbers(key: str) -> Array:
            resolved = self._dumps.cand.resolve(key)
            shape = self._dumps.cand.entry(resolved).shape
            return np.arange(math.prod(shape)).reshape(shape) if resolved == own else np.full(shape, -1)

        return match.recipe.made_of(list(map(numbers, match.recipe.keys)))


def _converted(array: Array, entry: Entry) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(as_numpy_dtype(entry.dtype), copy=False)
