"""Settling layouts: how the counterpart of each pair lies, concluded from the values and never from the shapes.

Asked are pairs of two shapes, and pairs whose parameter has another name in another framework (`kernel`, `weight`):
those may be transposed even where they are square. A pair of exactly one name is left as it is, so that a transposed
kernel is found as the fault it is, unless its shapes differ and JAX computed one side and something else the other.

Where the values of a pair cannot tell, because they differ by more than a layout or are the same in several, another
family of the same names tells (a gradient lies as its parameter does), or all settled pairs of the family with one
voice (NCHW activations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gradscope.comparison.layout.layouts import agreeing_layouts, arranged, arranged_part, layouts
from gradscope.comparison.layout.recipes import Recipe, Step
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.normal_forms import end_of
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import split_key

#: Goes through some matches with a function, perhaps several at a time.
Mapper: TypeAlias = Callable[[Callable[[Match], "tuple[Steps, ...]"], Iterable[Match]], Iterable["tuple[Steps, ...]"]]

Steps: TypeAlias = tuple[Step, ...]


def settled(dumps: Dumps, matches: Sequence[Match], mapper: Mapper) -> tuple[Match, ...]:
    """The pairs, each with the steps that bring its counterpart into the reference's layout where those are known.

    Args:
        dumps: Where they are from.
        matches: The pairs.
        mapper: How to go through them.

    Returns:
        As many pairs in the same order.
    """
    asked = [match for match in matches if _may_lie_otherwise(dumps, match)]
    by_values = dict(zip(asked, mapper(lambda match: _steps_by_values(dumps, match), asked), strict=True))
    known = {match: steps[0] for match, steps in by_values.items() if len(steps) == 1}
    witnesses = _Witnesses(dumps, known)
    for match, steps in by_values.items():
        testimony = witnesses.steps(match, steps or _possible(dumps, match))
        if match not in known and (testimony is not None or steps):
            known[match] = steps[0] if testimony is None else testimony
    return tuple(_with_steps(match, known.get(match, ())) for match in matches)


class _Witnesses:
    """Settled pairs, asked about pairs that are not."""

    def __init__(self, dumps: Dumps, known: Mapping[Match, Steps]) -> None:
        self._dumps = dumps
        self._by_names: dict[tuple[str, str], Steps] = {}
        self._by_family: defaultdict[tuple[str, int], set[Steps]] = defaultdict(set)
        for match, steps in known.items():
            self._by_names[_names(match)] = steps
            self._by_family[self._kin(match)].add(steps)

    def steps(self, match: Match, possible: Iterable[Steps]) -> Steps | None:
        """Which of the possible they say about a pair; None where they say nothing, or what cannot be."""
        return next((steps for steps in self._testimony(match) if steps in possible), None)

    def _testimony(self, match: Match) -> Iterator[Steps]:
        if _names(match) in self._by_names:
            yield self._by_names[_names(match)]
        kin = self._by_family[self._kin(match)]
        if len(kin) == 1:
            yield from kin

    def _kin(self, match: Match) -> tuple[str, int]:
        return split_key(match.ref)[0], len(self._dumps.ref.entry(match.ref).shape)


def _may_lie_otherwise(dumps: Dumps, match: Match) -> bool:
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
    """What the values say; several where it makes no difference to them, nothing where they cannot tell."""
    if not _possible(dumps, match):
        return ()
    if not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)):
        return ()
    ref = arranged_part(dumps.ref.array(match.ref), dumps.ref.entry(match.ref))
    cand = arranged_part(dumps.cand.array(match.cand), dumps.cand.entry(match.cand))
    return tuple(layout.steps(cand.shape) for layout in agreeing_layouts(ref, cand))


def _possible(dumps: Dumps, match: Match) -> tuple[Steps, ...]:
    """What the shapes allow."""
    ref, cand = arranged(dumps.ref.entry(match.ref)), arranged(dumps.cand.entry(match.cand))
    return tuple(layout.steps(cand) for layout in layouts(ref, cand))


def _with_steps(match: Match, steps: Steps) -> Match:
    return replace(match, recipe=Recipe(keys=match.recipe.keys, steps=steps)) if steps else match


def _names(match: Match) -> tuple[str, str]:
    return split_key(match.ref)[1], split_key(match.cand)[1]
