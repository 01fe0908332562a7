"""`with_layouts` infers the layout of each counterpart from values, never from shapes alone.

Layouts are inferred for pairs of two shapes, and for pairs whose parameter has another name in another framework
(`kernel`, `weight`): such a pair may be transposed even where it is square. A pair of equal names keeps its layout, so
that a transposed kernel is reported as a fault; the exception are two shapes where JAX computed only one of the dumps.

Some values do not show a layout: they differ by more than a layout, or are equal in several. Then related pairs decide:
a pair of another family with the same names (a gradient has the layout of its parameter), else all pairs of the same
family and number of axes if they agree on one layout (NCHW activations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gradscope.comparison.layout.layouts import agreeing_layouts, arranged, arranged_part, layouts
from gradscope.comparison.layout.recipes import Recipe, RecipeStep
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.normal_forms import end_of
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import split_key

#: Applies a function to matches, perhaps to several at a time.
Mapper: TypeAlias = Callable[[Callable[[Match], "tuple[Steps, ...]"], Iterable[Match]], Iterable["tuple[Steps, ...]"]]

Steps: TypeAlias = tuple[RecipeStep, ...]


def with_layouts(dumps: Dumps, matches: Sequence[Match], mapper: Mapper) -> tuple[Match, ...]:
    """Returns the matches with the recipe steps that bring each counterpart into the reference's layout.

    Args:
        dumps: The dumps of the matches.
        matches: The matches.
        mapper: Applies a function to many matches.

    Returns:
        As many matches in the same order; unchanged where no layout was found.
    """
    undecided = [match for match in matches if _may_have_other_layout(dumps, match)]
    by_values = dict(zip(undecided, mapper(lambda match: _steps_by_values(dumps, match), undecided), strict=True))
    known = {match: steps[0] for match, steps in by_values.items() if len(steps) == 1}
    related = _RelatedPairs(dumps, known)
    for match, steps in by_values.items():
        inferred = related.steps(match, steps or _possible_steps(dumps, match))
        if match not in known and (inferred is not None or steps):
            known[match] = steps[0] if inferred is None else inferred
    return tuple(_with_steps(match, known.get(match, ())) for match in matches)


class _RelatedPairs:
    """_RelatedPairs infers the layout of a pair from pairs of known layout.

    Args:
        dumps: The dumps.
        known: Pairs of known layout, each with its steps.
    """

    def __init__(self, dumps: Dumps, known: Mapping[Match, Steps]) -> None:
        self._dumps = dumps
        self._by_names: dict[tuple[str, str], Steps] = {}
        self._by_group: defaultdict[tuple[str, int], set[Steps]] = defaultdict(set)
        for match, steps in known.items():
            self._by_names[_names(match)] = steps
            self._by_group[self._group(match)].add(steps)

    def steps(self, match: Match, possible: Iterable[Steps]) -> Steps | None:
        """Returns the first steps of related pairs that are possible for a pair; None where there are none."""
        return next((steps for steps in self._evidence(match) if steps in possible), None)

    def _evidence(self, match: Match) -> Iterator[Steps]:
        if _names(match) in self._by_names:
            yield self._by_names[_names(match)]
        in_group = self._by_group[self._group(match)]
        if len(in_group) == 1:
            yield from in_group

    def _group(self, match: Match) -> tuple[str, int]:
        return split_key(match.ref)[0], len(self._dumps.ref.entry(match.ref).shape)


def _may_have_other_layout(dumps: Dumps, match: Match) -> bool:
    if not match.recipe.plain or match.matched_by == "map":
        return False
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if not comparable(one.dtype, other.dtype):
        return False
    if one.shape != other.shape:
        return match.matched_by != "name" or _is_of_jax(dumps.ref) is not _is_of_jax(dumps.cand)
    return match.matched_by == "path" and len(arranged(one)) > 1 and end_of(one.name) != end_of(other.name)


def _is_of_jax(source: DumpSource) -> bool:
    versions = source.manifest.provenance.get("versions")
    return isinstance(versions, dict) and "jax" in versions


def _steps_by_values(dumps: Dumps, match: Match) -> tuple[Steps, ...]:
    """Returns the steps that the values agree with; several where the values are equal in all of them."""
    if not _possible_steps(dumps, match):
        return ()
    if not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)):
        return ()
    ref = arranged_part(dumps.ref.array(match.ref), dumps.ref.entry(match.ref))
    cand = arranged_part(dumps.cand.array(match.cand), dumps.cand.entry(match.cand))
    return tuple(layout.steps(cand.shape) for layout in agreeing_layouts(ref, cand))


def _possible_steps(dumps: Dumps, match: Match) -> tuple[Steps, ...]:
    """Returns the steps of all layouts that the shapes allow."""
    ref, cand = arranged(dumps.ref.entry(match.ref)), arranged(dumps.cand.entry(match.cand))
    return tuple(layout.steps(cand) for layout in layouts(ref, cand))


def _with_steps(match: Match, steps: Steps) -> Match:
    return replace(match, recipe=Recipe(keys=match.recipe.keys, steps=steps)) if steps else match


def _names(match: Match) -> tuple[str, str]:
    return split_key(match.ref)[1], split_key(match.cand)[1]
