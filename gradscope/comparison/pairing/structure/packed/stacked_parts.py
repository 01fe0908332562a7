"""`by_stacked_parts` matches parameters that one program has stacked, and the other packed in other tensors.

A scan over layers has the queries of all layers as one stack, `[layers, in, out]`, and those of keys and of values;
PyTorch has a packed projection for each layer. Or the stack has all three, and the other program has them for each
layer. Every slice of a stack is taken for a tensor of its own, and `values.parts.by_parts` finds which of these are
packed in which. A stack is matched where that holds for all its slices alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import Concatenate, RecipeStep, Reshape, Split, Stack, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.layout.stacked_steps import stacked_steps
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy, Pairing
from gradscope.comparison.pairing.values.parts.by_parts import by_parts
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.sources.whole_arrays import WholeArrays
from gradscope.naming import PARAM, STATE, gradient_key, key_of, split_key
from gradscope.protocols import implements

#: The families of tensors that a program stacks for a loop.
_STACKED: Final = (PARAM, STATE)

#: The most slices of a stack: a program has hardly more layers.
_MOST_SLICES: Final = 512

#: The most slices of a stack that are all tried at once.
_FEW: Final = 4


def by_stacked_parts(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of stacked parameters whose slices are packed in tensors of the other program, or pack them."""
    for count, stacks in _stacks(dumps.cand, unmatched.only_cand).items():
        if len(unmatched.only_ref) >= count:
            for slices in _sliced(dumps.cand, stacks, count):
                sliced = replace(unmatched, only_cand=slices.names)
                if not (found := _found(replace(dumps, cand=slices), sliced)):
                    break
                yield from _of_candidate(found, slices, count)
    for count, stacks in _stacks(dumps.ref, unmatched.only_ref).items():
        if len(unmatched.only_cand) >= count:
            for slices in _sliced(dumps.ref, stacks, count):
                sliced = replace(unmatched, only_ref=slices.names)
                if not (found := _found(replace(dumps, ref=slices), sliced)):
                    break
                yield from _of_reference(found, slices, dumps.cand, count)


def _found(dumps: Dumps, pairing: Pairing) -> tuple[Match, ...]:
    return replace(pairing, matched=()).with_matches(by_parts(dumps, pairing)).matched


def _stacks(source: DumpSource, keys: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """Returns the tensors that may be stacks, by the number of their slices."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for key in keys:
        entry = source.entry(key)
        own = split_key(key)[0] in _STACKED and entry.alias_of is None and source.has_tensor(key)
        if own and len(entry.shape) > 1 and 1 < entry.shape[0] <= _MOST_SLICES:
            found[entry.shape[0]].append(key)
    return found


def _sliced(source: DumpSource, stacks: Sequence[str], count: int) -> Iterator[_Slices]:
    """Yields a few slices of each of some stacks, and then all: where nothing is found of these, no stack is."""
    if count > _FEW:
        yield _Slices(source, stacks, (0, count // 2, count - 1))
    yield _Slices(source, stacks, range(count))


class _Slices(WholeArrays):
    """_Slices is a dump of the slices of some tensors of another one, and of their gradients.

    Args:
        source: The other dump.
        stacks: The keys of the tensors.
        numbers: The numbers of the slices.
    """

    def __init__(self, source: DumpSource, stacks: Sequence[str], numbers: Sequence[int]) -> None:
        self._source = source
        self._of: dict[str, tuple[str, int]] = {}
        entries: dict[str, Entry] = {}
        known = frozenset(source.keys())
        gradients = [key for key in map(gradient_key, stacks) if key in known and source.has_tensor(key)]
        for key in (*stacks, *gradients):
            entry = source.entry(key)
            for number in numbers:
                name = f"{entry.name}[{number}]"
                self._of[key_of(entry.family, name)] = key, number
                entries[key_of(entry.family, name)] = replace(entry, name=name, shape=entry.shape[1:])
        self.names = tuple(name for name, (key, _) in self._of.items() if key not in {*gradients})
        super().__init__(source.manifest, self._of, entries)

    def of(self, name: str) -> tuple[str, int]:
        """Returns the tensor that a slice is of, and its number."""
        return self._of[name]

    @implements(DumpSource)
    def array(self, key: str) -> Array:
        (stack, number), shape = self._of[key], self.entry(key).shape
        size = math.prod(shape)
        return self._source.stretch(stack, number * size, (number + 1) * size).reshape(shape)


class _Way(NamedTuple):
    """_Way has what the slices of stacks have in common: their stacks, and the steps that make parts of them."""

    stacks: tuple[str, ...]
    steps: tuple[RecipeStep, ...]


def _of_candidate(found: Iterable[Match], slices: _Slices, count: int) -> Iterator[Match]:
    """Yields matches of the reference's tensors with the candidate's stacks, all of whose slices are matched alike."""
    ways: defaultdict[_Way, dict[tuple[int, int], Match]] = defaultdict(dict)
    for match in found:
        stacks, numbers = zip(*map(slices.of, match.recipe.keys), strict=True)
        if len({*numbers}) == 1:
            ways[_Way(stacks, match.recipe.steps)][match.recipe.part, numbers[0]] = match
    for way, matches in ways.items():
        parts = {part for part, _ in matches}
        if len(matches) != count * len(parts):
            continue
        steps = (*stacked_steps(way.steps, count), Unstack(0))
        for (part, number), match in matches.items():
            yield replace(match, recipe=Recipe(keys=way.stacks, steps=steps, part=part * count + number))


def _of_reference(found: Iterable[Match], slices: _Slices, other: DumpSource, count: int) -> Iterator[Match]:
    """Yields matches of the reference's stacks, all of whose slices are matched alike, with the candidate's tensors."""
    of_stack: defaultdict[str, dict[int, Match]] = defaultdict(dict)
    for match in found:
        stack, number = slices.of(match.ref)
        of_stack[stack][number] = match
    for stack, matches in of_stack.items():
        recipes = [matches[number].recipe for number in sorted(matches)]
        if len(recipes) != count or len({(each.steps, each.part, len(each.keys)) for each in recipes}) > 1:
            continue
        keys = tuple(key for recipe in recipes for key in recipe.keys)
        shapes = {other.entry(key).shape for key in keys}
        if (steps := _together(recipes[0], count, *shapes)) is not None:
            by: MatchedBy = "order" if any(each.matched_by == "order" for each in matches.values()) else "fingerprint"
            yield Match(ref=stack, recipe=Recipe(keys=keys, steps=steps, part=recipes[0].part), matched_by=by)


def _together(recipe: Recipe, count: int, *shapes: Shape) -> tuple[RecipeStep, ...] | None:
    """Returns the steps that make a stack of the tensors that recipes of the same steps have, one after the other.

    Args:
        recipe: The recipe of one slice.
        count: The number of slices.
        shapes: The shapes of the tensors.

    Returns:
        The steps; None where tensors of several shapes are joined in another way than along one axis.
    """
    *apart, last = recipe.steps
    if len(shapes) == 1:
        of_slice = Stack(0), Reshape((count, len(recipe.keys), *shapes[0])), Unstack(1)
        return *of_slice, *stacked_steps(recipe.steps, count)
    if isinstance(last, Concatenate) and not any(isinstance(step, Concatenate | Stack) for step in apart):
        return *recipe.steps, Split(last.axis, count), Stack(0)
    return None
