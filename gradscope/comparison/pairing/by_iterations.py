"""Pairing through turns: a program with loops against one that writes the turns out one by one.

What is left over is found by its turns (`turns`). And what is not left over may need them: a scope around a loop hands
on what the loop hands out, and in the other program what the last turn made, under one name. Those are the same value,
but where the turn's output is used inside the loop as well, stacked as every turn's is, say, the gradient that arrives
at the loop's is a part of what arrives at the turn's. A part is not held against the whole.

The pass of turns: what a loop hands out and what its turns are handed, where the other program has no loop.

A loop under a scope is a layer (`block`) around its turns (`block[0]`, `block[1]`, ...). In a program that writes the
turns out one by one, they are layers like any other, and nothing stands around them:

- What a loop *hands out* is what its turns made: the carry of the last, or a stack of what each made. It is compared
  with what the turns' own outputs were paired with.
- What a loop *hands in*, to each turn its slice of a stack, is cut out there by operations of their own. They are
  compared with that slice of what the stack was paired with.

Names only suggest what a tensor is made of; the values prove it: in its own dump they have to be equal. So what is
really missing is not taken for a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gradscope.comparison.layout.operands import StoredSide, counterpart
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.evidence import evidence_of
from gradscope.comparison.pairing.loops import Loops
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key


def by_turns(source: DumpSource, left: Iterable[str], counterparts: Mapping[str, str]) -> Iterator[Match]:
    """The pass of turns.

    Args:
        source: A dump, of either side.
        left: Keys that are left over of it.
        counterparts: The other dump's keys for what lies in both as it is, by keys of owners.

    Yields:
        A key of the dump, and what its counterpart is made of on the other side.

    Raises:
        DumpError: The dump is damaged.
    """
    loops = Loops(source)
    for key in left:
        own = source.resolve(key)
        for recipe in loops.recipes(own):
            if all(part in counterparts for part in recipe.keys) and _makes(source, recipe, own):
                parts = tuple(counterparts[part] for part in recipe.keys)
                yield Match(ref=key, recipe=replace(recipe, keys=parts), matched_by="turns")
                break


def _makes(source: DumpSource, recipe: Recipe, key: str) -> bool:
    """Whether a recipe gives the very values of a tensor of the same dump."""
    if source.entry(key).absent is not None:
        return False
    found = evidence_of(StoredSide(source=source, key=key), counterpart(source, recipe), (0.0, 0.0))
    # Hashes prove that two tensors are equal, no other statistic does.
    return found.needed == 0.0 and (found.bit_equal is True or "rel_l2" in found.metrics)


def through_turns(dumps: Dumps, found: Pairing) -> Pairing:
    """A pairing with what loops hand out, in either dump.

    Args:
        dumps: The dumps.
        found: Their pairing by all other passes.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    whole = _without_parts(dumps, found, _Alike.of(dumps, found.matched))
    alike = _Alike.of(dumps, whole.matched)
    there = tuple(by_turns(dumps.ref, whole.only_ref, alike.cand))
    back = tuple(by_turns(dumps.cand, whole.only_cand, alike.ref))
    seen = {match.ref for match in there}, {match.ref for match in back}
    return replace(
        whole,
        matched=(*whole.matched, *there),
        inverse=back,
        only_ref=tuple(key for key in whole.only_ref if key not in seen[0]),
        only_cand=tuple(key for key in whole.only_cand if key not in seen[1]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """What lies in both dumps as it is: the pairs, and each side's keys by those of the other's owners."""

    matches: tuple[Match, ...]
    ref: Mapping[str, str]
    cand: Mapping[str, str]

    @classmethod
    def of(cls, dumps: Dumps, matches: Iterable[Match]) -> _Alike:
        plain = [match for match in matches if match.recipe.plain and _same_shape(dumps, match)]
        # Of several names of one tensor its own counts: another may be the name of something else on the other side.
        plain.sort(
            key=lambda match: (dumps.ref.resolve(match.ref) == match.ref, dumps.cand.resolve(match.cand) == match.cand)
        )
        return cls(
            matches=tuple(plain),
            ref={dumps.cand.resolve(match.cand): match.ref for match in plain},
            cand={dumps.ref.resolve(match.ref): match.cand for match in plain},
        )


def _same_shape(dumps: Dumps, match: Match) -> bool:
    return dumps.ref.entry(match.ref).shape == dumps.cand.entry(match.cand).shape


def _without_parts(dumps: Dumps, found: Pairing, alike: _Alike) -> Pairing:
    """The pairing without pairs of a gradient with a part of it."""
    in_ref, in_cand = _paired_twice(dumps, alike.matches)
    parts, of_cand = _parts(dumps.ref, in_ref, alike.cand), _parts(dumps.cand, in_cand, alike.ref)
    told = {match.ref: match for match in parts.values()}
    kept: list[Match] = []
    left = {*found.only_ref}
    for match in found.matched:
        if match.matched_by == "map":  # which is somebody's word
            kept.append(match)
        elif match.ref in parts:
            left.add(match.ref)
        elif match.recipe.plain and match.cand in of_cand:
            kept.append(Match.of(match.ref, alike.cand[dumps.ref.resolve(match.ref)], "turns"))
        else:
            kept.append(told.get(match.ref, match))
    ordered = (key for key in dumps.ref.keys() if key in left)  # noqa: SIM118 - no mapping
    return replace(found, matched=tuple(kept), only_ref=tuple(ordered))


def _paired_twice(dumps: Dumps, matches: Iterable[Match]) -> tuple[list[str], list[str]]:
    """Values of the reference whose counterpart is another's, too, and such values of the candidate."""
    values = [match for match in matches if split_key(match.ref)[0] == ACTIVATION]
    owners = {match: (dumps.ref.resolve(match.ref), dumps.cand.resolve(match.cand)) for match in values}
    ref, cand = (Counter(pair[side] for pair in set(owners.values())) for side in (0, 1))
    return (
        [match.ref for match, pair in owners.items() if cand[pair[1]] > 1],
        [match.cand for match, pair in owners.items() if ref[pair[0]] > 1],
    )


def _parts(source: DumpSource, values: Iterable[str], counterparts: Mapping[str, str]) -> dict[str, Match]:
    """Gradients of one side that are a part of what arrives at the same value in a turn, and what that value is."""
    known = frozenset(source.keys())
    found: dict[str, Match] = {}
    for match in by_turns(source, values, counterparts):
        gradient = key_of(ACTIVATION_GRAD, split_key(match.ref)[1])
        if gradient in known and not any(by_turns(source, [gradient], counterparts)):
            found[gradient] = match
    return found
