"""`with_measured_parts` pairs packed tensors of which only statistics are known with the tensors packed in them.

Norms, means and extremes of a packed tensor follow from those of its parts, and nothing shows in which order they are
in it. So a packed tensor is compared in whole with all of its parts, whichever dump has it: what a pass found to be a
slice of a tensor without elements is joined with the other slices again.

Where the elements are known, too, they are no parts in this order unless these agree: nothing found another one. Of a
constant, all parts are equal, and the elements of the gradients have to agree.

Parts are looked for in one scope, and among tensors whose names differ in their numbers alone. Those of biases that are
all zero are called as those of the kernel are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gradscope.comparison.layout.joined_statistics import joined_statistics
from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.layout.recipe_steps import Concatenate, Reshape
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.bounds import statistics_agree
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.equality import is_constant, is_measured
from gradscope.comparison.pairing.values.parts.part_names import SolvedNames, spelt, words_of
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import PARAM, PARAM_GRAD, STATE, gradient_key, split_key

#: The most tensors of one scope among which the parts of a packed tensor are looked for.
_MOST_MEMBERS: Final = 16

#: The most sets of tensors that are tried as the parts of one.
_MOST_TRIED: Final = 4096

#: The most groups of tensors that are looked at for all packed tensors together, besides those of exactly their size.
_MOST_GROUPS: Final = 1 << 18

#: The relative error of elements beyond which they are in another order; that of unrelated ones is about 1.4.
_LARGEST_ERROR: Final = 0.5

#: What the norm l1 of parts may be larger by than that of the tensor that they are packed in, of whatever dtype.
_SLACK: Final = 1e-2


def with_measured_parts(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with packed tensors of which only statistics are known, and their parts.

    Args:
        dumps: The dumps.
        pairing: Their pairing by all other passes.
    """
    pairing = _with_slices_joined(dumps, pairing)
    in_cand = list(_packed(dumps, dumps.cand, pairing.only_cand, dumps.ref, pairing.only_ref))
    pairing = _with_inverse(pairing, in_cand)
    in_ref = list(_packed(dumps, dumps.ref, pairing.only_ref, dumps.cand, pairing.only_cand))
    return pairing.with_matches(in_ref)


def _with_slices_joined(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with all slices of a candidate's tensor without elements as one inverse match."""
    slices: defaultdict[Recipe, list[Match]] = defaultdict(list)
    for match in pairing.matched:
        if len(match.recipe.keys) == 1 and match.recipe.steps and _is_measured_only(dumps, match.ref, match.cand):
            slices[replace(match.recipe, part=0)].append(match)
    joined: list[Match] = []
    for recipe, matches in slices.items():
        refs = tuple(each.ref for each in sorted(matches, key=lambda each: each.recipe.part))
        shape = dumps.cand.entry(recipe.keys[0]).shape
        if len(refs) > 1 and sum(_size(dumps.ref, key) for key in refs) == math.prod(shape):
            joined.append(_joined(recipe.keys[0], refs, shape, matches[0]))
    gone = {key for each in joined for key in each.recipe.keys}
    kept = tuple(each for each in pairing.matched if each.ref not in gone)
    return replace(pairing, matched=kept, inverse=(*pairing.inverse, *joined))


def _is_measured_only(dumps: Dumps, ref: str, cand: str) -> bool:
    """Returns whether the statistics of two tensors are known, and the elements of one of them are not."""
    known = is_measured(dumps.ref, ref) and is_measured(dumps.cand, cand)
    return known and not (dumps.ref.has_tensor(ref) and dumps.cand.has_tensor(cand))


def _joined(key: str, parts: tuple[str, ...], shape: tuple[int, ...], found: Match | None = None) -> Match:
    """Returns the match of a packed tensor with all of its parts, in the order in which they are listed."""
    recipe = Recipe(keys=parts, steps=(Reshape((-1,)), Concatenate(0), Reshape(shape)))
    return Match(ref=key, recipe=recipe, matched_by="fingerprint" if found is None else found.matched_by)


def _with_inverse(pairing: Pairing, inverse: Sequence[Match]) -> Pairing:
    refs = {key for each in inverse for key in each.recipe.keys}
    cands = {each.ref for each in inverse}
    return replace(
        pairing,
        inverse=(*pairing.inverse, *inverse),
        only_ref=tuple(key for key in pairing.only_ref if key not in refs),
        only_cand=tuple(key for key in pairing.only_cand if key not in cands),
    )


def _packed(
    dumps: Dumps, holder: DumpSource, packed: Sequence[str], other: DumpSource, singles: Sequence[str]
) -> Iterator[Match]:
    """Yields packed tensors of one dump with their parts in the other, and gradients as their parameters."""
    free = _FreeParts(dumps, other, singles)
    whole, gradients = [key for key in packed if _is_given(holder, key)], frozenset(packed)
    if not whole or not free.parts:
        return
    names = SolvedNames()
    for key in sorted(whole, key=lambda key: -len(holder.entry(key).shape)):
        parts = free.named(holder, key, names) or free.found(holder, key)
        if not parts or _is_refuted(holder, other, _joined(key, parts, holder.entry(key).shape)):
            continue
        names.add(key, parts)
        free.remove(parts)
        yield _joined(key, parts, holder.entry(key).shape)
        own = tuple(map(gradient_key, parts))
        if gradient_key(key) in gradients and all(each in free.gradients for each in own):
            yield _joined(gradient_key(key), own, holder.entry(key).shape)


def _is_refuted(holder: DumpSource, other: DumpSource, found: Match) -> bool:
    """Returns whether the elements of a packed tensor and of its parts are known, and are in another order."""
    gradients = replace(found.recipe, keys=tuple(map(gradient_key, found.recipe.keys)))
    given = [(found.ref, found.recipe)]
    # All parts of a constant are equal, and are in every order: only their gradients are not.
    given += [(gradient_key(found.ref), gradients)] if is_constant(holder.entry(found.ref).stats) else []
    known = [each for each in given if holder.has_tensor(each[0]) and all(map(other.has_tensor, each[1].keys))]
    return any(relative_error(holder.array(key), recipe.array(other)) > _LARGEST_ERROR for key, recipe in known)


def _is_given(source: DumpSource, key: str) -> bool:
    entry = source.entry(key)
    given = entry.family in (PARAM, STATE) and entry.alias_of is None and is_measured(source, key)
    return given and math.prod(entry.shape) > 1 and "l1" in entry.stats


@dataclass(frozen=True, slots=True)
class _Part:
    """_Part has a tensor that may be a part of another one."""

    key: str
    size: int
    l1: float


class _FreeParts:
    """_FreeParts finds the parts of packed tensors among those of a dump that nothing has matched.

    Args:
        dumps: Both dumps.
        source: That of them which has the parts.
        keys: The keys that nothing has matched.
    """

    def __init__(self, dumps: Dumps, source: DumpSource, keys: Iterable[str]) -> None:
        self._dumps = dumps
        self._source = source
        keys = tuple(keys)
        given = [key for key in keys if _is_given(source, key)]
        self.parts = {key: _Part(key, _size(source, key), as_float(source.entry(key).stats["l1"])) for key in given}
        self.gradients = frozenset(key for key in keys if split_key(key)[0] == PARAM_GRAD)
        self._spelt = {spelt(key): key for key in given}
        groups: defaultdict[tuple[str | None, ...], list[str]] = defaultdict(list)
        for key in given:
            for group in _groups_of(key):
                groups[group].append(key)
        self._few: list[tuple[list[str], int]] = []
        self._of_size: defaultdict[int, list[list[str]]] = defaultdict(list)
        for members in (each for each in groups.values() if len(each) > 1):
            elements = sum(self.parts[key].size for key in members)
            self._of_size[elements].append(members)
            if len(members) <= _MOST_MEMBERS:
                self._few.append((members, elements))
        self._left = _MOST_GROUPS

    def remove(self, keys: Iterable[str]) -> None:
        """Leaves out some that have been found to be parts."""
        for key in keys:
            del self.parts[key]

    def named(self, holder: DumpSource, key: str, names: SolvedNames) -> tuple[str, ...]:
        """Returns those that are called as the parts of a packed tensor are; none where their statistics differ."""
        for proposed in names.parts_of(key):
            found = tuple(self._spelt[each] for each in proposed if each in self._spelt)
            parts = [self.parts[each] for each in found if each in self.parts]
            if len(parts) == len(proposed) and self._make(holder, key, parts):
                return found
        return ()

    def found(self, holder: DumpSource, key: str) -> tuple[str, ...]:
        """Returns those of one group that have the statistics of a packed tensor together; none where none has."""
        size, limit = _size(holder, key), as_float(holder.entry(key).stats["l1"]) * (1 + _SLACK)
        for group in self._near(size):
            members = [self.parts[each] for each in group if each in self.parts]
            sets = (members,) if len(members) > _MOST_MEMBERS else islice(_sets(members, size, limit), _MOST_TRIED)
            for each in sets:
                if len(each) > 1 and self._make(holder, key, each):
                    return tuple(part.key for part in each)
        return ()

    def _near(self, size: int) -> Iterator[list[str]]:
        """Yields the groups that have so many elements, and then those of few tensors that have more."""
        yield from self._of_size.get(size, ())
        left = min(self._left, len(self._few))
        self._left -= left
        yield from (members for members, elements in islice(self._few, left) if elements > size)

    def _make(self, holder: DumpSource, key: str, parts: Sequence[_Part]) -> bool:
        """Returns whether some tensors have the statistics of a packed one together."""
        entry = holder.entry(key)
        stats = joined_statistics([(self._source.entry(each.key).stats, each.size) for each in parts])
        fit = sum(each.size for each in parts) == math.prod(entry.shape)
        limit = self._dumps.tolerance(entry.family, entry.dtype, self._source.entry(parts[0].key).dtype)
        return fit and statistics_agree(entry.stats, stats, limit)


def _sets(members: Sequence[_Part], size: int, l1: float) -> Iterator[Sequence[_Part]]:
    """Yields the sets of tensors with so many elements together, and no larger a norm."""
    if size == 0:
        yield ()
    for place, each in enumerate(members):
        if each.size <= size and each.l1 <= l1:
            for rest in _sets(members[place + 1 :], size - each.size, l1 - each.l1):
                yield (each, *rest)


def _groups_of(key: str) -> Iterator[tuple[str | None, ...]]:
    """Yields the scopes around a tensor, and its name without each of its numbers, and without all of them."""
    family, words = split_key(key)[0], words_of(key)
    yield from ((family, *words[:length]) for length in range(len(words) - 1, 0, -1))
    numbers = [place for place, word in enumerate(words) if any(map(str.isdigit, word))]
    yield from ((family, *words[:place], None, *words[place + 1 :]) for place in numbers)
    if len(numbers) > 1:
        yield (family, *(None if place in numbers else word for place, word in enumerate(words)))


def _size(source: DumpSource, key: str) -> int:
    return math.prod(source.entry(key).shape)
