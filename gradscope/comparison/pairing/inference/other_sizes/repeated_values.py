"""`with_repeats` pairs a value with one that repeats it along axes, as positions that one program embeds per example.

Shapes are those that NumPy would broadcast. The larger value has to be equal in all slices, whatever the other is. The
gradient with respect to what is not repeated is the sum of those with respect to the slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, Split, Sum
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable, dtype_class
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, split_key

#: The names of a value in both dumps.
_Names: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A `Repeat` says how the smaller of two shapes is made of the larger.

    Attributes:
        of_ref: Whether the reference has the larger one.
        axes: The axes of the larger one along which it repeats the other; none where it has more axes of one element.
        large: The larger one.
        small: The smaller one.
    """

    of_ref: bool
    axes: tuple[int, ...]
    large: Shape
    small: Shape

    def value_steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps whose first result is the first slice."""
        return (*(Split(axis, self.large[axis]) for axis in self.axes), *self._shaped())

    def gradient_steps(self) -> tuple[RecipeStep, ...]:
        """Returns the steps that add up the slices."""
        return (*map(Sum, self.axes), *self._shaped())

    def _shaped(self) -> Iterator[RecipeStep]:
        if len(self.small) < len(self.large):
            yield Reshape(self.small)


def with_repeats(dumps: Dumps, matches: Sequence[Match]) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
    """Returns the matches with the recipes of values that one dump repeats, and inverse ones where it is the reference.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, with their layouts.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    repeats = dict(_repeats(dumps, matches))
    if not repeats:
        return tuple(matches), ()
    made = {match: _recipe(match, repeats) for match in matches}
    inverse = [
        replace(match, ref=match.cand, recipe=replace(recipe, keys=(match.ref,)))
        for match, recipe in made.items()
        if recipe is not None and repeats[_names(match)].of_ref
    ]
    kept = (
        match if recipe is None else replace(match, recipe=recipe)
        for match, recipe in made.items()
        if recipe is None or not repeats[_names(match)].of_ref
    )
    return tuple(kept), tuple(inverse)


def _repeats(dumps: Dumps, matches: Sequence[Match]) -> Iterator[tuple[_Names, Repeat]]:
    for match in matches:
        if match.recipe.plain and match.matched_by != "map" and (found := repeat_in(dumps, match)) is not None:
            yield _names(match), found


def repeat_in(dumps: Dumps, match: Match) -> Repeat | None:
    """Returns how one of two activations repeats the other; None where it does not, and where they have one shape.

    Args:
        dumps: The dumps of the pair.
        match: A pair of two tensors as they are stored.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    found = _repeat(one.shape, other.shape) if one.family == ACTIVATION else None
    if found is None or not comparable(one.dtype, other.dtype) or dtype_class(other.dtype) != "float":
        return None
    source, key = (dumps.ref, match.ref) if found.of_ref else (dumps.cand, match.cand)
    limit = dumps.tolerance(ACTIVATION, one.dtype, other.dtype)
    return found if source.has_tensor(key) and _is_repeated(source.array(key), found.axes, limit) else None


def _repeat(ref: Shape, cand: Shape) -> Repeat | None:
    """Returns how one of two shapes is broadcast to the other; None where it is not, and where they are the same."""
    of_ref = (len(ref), np.prod(ref)) > (len(cand), np.prod(cand))
    large, small = (ref, cand) if of_ref else (cand, ref)
    aligned = (1,) * (len(large) - len(small)) + small
    pairs = list(zip(large, aligned, strict=True))
    axes = tuple(axis for axis, (one, other) in enumerate(pairs) if one != other)
    is_broadcast = all(other == 1 and one > 1 for one, other in pairs if one != other)
    return Repeat(of_ref, axes, large, small) if is_broadcast and large != small else None


def _is_repeated(array: Array, axes: tuple[int, ...], limit: float) -> bool:
    values = array.astype(np.float64)
    first = values[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(array.ndim))]
    return bool(np.linalg.norm(values - first) <= limit * np.linalg.norm(values))


def _recipe(match: Match, repeats: Mapping[_Names, Repeat]) -> Recipe | None:
    found, family = repeats.get(_names(match)), split_key(match.ref)[0]
    if found is None or family not in (ACTIVATION, ACTIVATION_GRAD) or not match.recipe.plain:
        return None
    return Recipe(keys=(match.cand,), steps=found.value_steps() if family == ACTIVATION else found.gradient_steps())


def _names(match: Match) -> _Names:
    return split_key(match.ref)[1], split_key(match.cand)[1]
