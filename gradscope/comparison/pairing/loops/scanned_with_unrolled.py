"""Pairs the outputs of a loop (`lax.scan`) with the iterations of a program that writes the loop out.

A loop under a scope is a layer (`cell`) around one layer for each iteration (`cell[0]`, `cell[1]`, ...). A program that
writes the iterations out has the same layers without `cell` around them, so loop outputs have no counterpart by name:

    scanned                            unrolled
    cell[0]/act, cell[1]/act           cell[0]/act, cell[1]/act             paired by name
    cell.0, the final carry            cell[1]/act                          output of the last iteration
    cell.1, the stacked outputs        stack of cell[0]/act, cell[1]/act    `Stack(0)` of all iterations
    w, an array that is scanned over   cell[1]/squeeze                      `Unstack(0)`, part 1: an operation cuts it

`iteration_recipes` proposes such recipes from layers and shapes. A recipe is used where it makes exactly the tensor's
values in the tensor's own dump, so that a tensor that is really missing is not taken for a loop output.

Sharp edge: gradients of one value can differ between the programs. Where the final carry is also stacked, as above, the
unrolled `cell[1]/act` receives the sum of two gradients, and the scanned `cell.0` and `cell.1` receive one each. Such a
partial gradient is not compared with the sum, not even where a scope around the loop gives both the same name.

Sharp edge: a program that opens the scope `layers` around each iteration has the output of the first one under that
name, where a loop has that of the last. Such names are refuted by the iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gradscope.comparison.layout.operands import StoredOperand, counterpart
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.evidence import evidence_of
from gradscope.comparison.pairing.loops.iteration_recipes import UnrolledLoops
from gradscope.comparison.pairing.loops.means_of_parts import with_means_of_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key


def pair_loop_outputs(dumps: Dumps, pairing: Pairing) -> Pairing:
    """Returns the pairing with the loop outputs of either dump paired, and without pairs of partial gradients.

    Args:
        dumps: The dumps.
        pairing: Their pairing by all other passes.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    pairing = with_means_of_parts(dumps, pairing)
    pairing = _without_partial_gradients(dumps, pairing, _PlainPairs.of(dumps, pairing.matched))
    plain = _PlainPairs.of(dumps, pairing.matched)
    of_ref = tuple(by_iterations(dumps.ref, pairing.only_ref, plain.cand_keys))
    of_ref += tuple(_of_joined(dumps, pairing, {each.ref for each in of_ref}))
    of_cand = tuple(by_iterations(dumps.cand, pairing.only_cand, plain.ref_keys))
    paired_ref, paired_cand = {match.ref for match in of_ref}, {match.ref for match in of_cand}
    return replace(
        pairing,
        matched=(*pairing.matched, *of_ref),
        inverse=(*pairing.inverse, *of_cand),
        only_ref=tuple(key for key in pairing.only_ref if key not in paired_ref),
        only_cand=tuple(key for key in pairing.only_cand if key not in paired_cand),
    )


def by_iterations(source: DumpSource, unmatched: Iterable[str], counterparts: Mapping[str, str]) -> Iterator[Match]:
    """Yields pairs of loop outputs, or slices of scanned arrays, with tensors of the other dump.

    Args:
        source: A dump, the reference or the candidate.
        unmatched: Keys of the dump without a counterpart.
        counterparts: The other dump's keys of tensors that both dumps have in one form, by keys of this dump's owners.

    Yields:
        A key of the dump, and the recipe of its counterpart over keys of the other dump.

    Raises:
        DumpError: The dump is damaged.
    """
    loops = UnrolledLoops(source)
    for key in unmatched:
        owner = source.resolve(key)
        for recipe in loops.recipes(owner):
            if all(each in counterparts for each in recipe.keys) and _makes(source, recipe, owner):
                keys = tuple(counterparts[each] for each in recipe.keys)
                yield Match(ref=key, recipe=replace(recipe, keys=keys), matched_by="iterations")
                break


def _of_joined(dumps: Dumps, pairing: Pairing, known: Collection[str]) -> Iterator[Match]:
    """Yields pairs of loop outputs of the reference that are an iteration's, which is joined of parts, or is a part."""
    joined = {match.ref: match for match in pairing.matched if match.matched_by == "iterations"}
    loops = UnrolledLoops(dumps.ref)
    for key in (key for key in pairing.only_ref if joined and key not in known):
        owner = dumps.ref.resolve(key)
        for recipe in (each for each in loops.recipes(owner) if each.plain and each.keys[0] in joined):
            if _makes(dumps.ref, recipe, owner):
                yield replace(joined[recipe.keys[0]], ref=key)
                break


def _makes(source: DumpSource, recipe: Recipe, key: str) -> bool:
    """Returns whether a recipe makes exactly the values of a tensor of the same dump."""
    if source.entry(key).absent is not None:
        return False
    evidence = evidence_of(StoredOperand(source=source, key=key), counterpart(source, recipe), (0.0, 0.0))
    # Of statistics only hashes prove that two tensors are equal: the others can agree by chance.
    return evidence.needed == 0.0 and (evidence.bit_equal is True or "rel_l2" in evidence.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainPairs:
    """_PlainPairs stores the pairs of equal shape without recipe steps, and each dump's keys by the other's owners."""

    matches: tuple[Match, ...]
    ref_keys: Mapping[str, str]
    cand_keys: Mapping[str, str]

    @classmethod
    def of(cls, dumps: Dumps, matches: Iterable[Match]) -> _PlainPairs:
        plain = [match for match in matches if match.recipe.plain and _same_shape(dumps, match)]
        # Owners come last and replace aliases of the same key: an alias can name another tensor in the other dump.
        plain.sort(
            key=lambda match: (dumps.ref.resolve(match.ref) == match.ref, dumps.cand.resolve(match.cand) == match.cand)
        )
        return cls(
            matches=tuple(plain),
            ref_keys={dumps.cand.resolve(match.cand): match.ref for match in plain},
            cand_keys={dumps.ref.resolve(match.ref): match.cand for match in plain},
        )


def _same_shape(dumps: Dumps, match: Match) -> bool:
    return dumps.ref.entry(match.ref).shape == dumps.cand.entry(match.cand).shape


def _without_partial_gradients(dumps: Dumps, pairing: Pairing, plain: _PlainPairs) -> Pairing:
    """Returns the pairing without pairs of a partial gradient and the sum that it is a part of."""
    ambiguous_ref, ambiguous_cand = _paired_twice(dumps, plain.matches)
    partial_in_ref = _partial_gradients(dumps.ref, ambiguous_ref, plain.cand_keys)
    partial_in_cand = _partial_gradients(dumps.cand, ambiguous_cand, plain.ref_keys)
    value_matches = {match.ref: match for match in partial_in_ref.values()}
    matches: list[Match] = []
    only_ref = {*pairing.only_ref}
    for match in pairing.matched:
        if match.matched_by == "map":  # the user's own rule is not overruled
            matches.append(match)
        elif match.ref in partial_in_ref:
            only_ref.add(match.ref)
        elif match.recipe.plain and match.cand in partial_in_cand:
            total = plain.cand_keys[dumps.ref.resolve(match.ref)]
            matches.append(Match.of(match.ref, total, "iterations"))
        else:
            matches.append(value_matches.get(match.ref, match))
    ordered = (key for key in dumps.ref.keys() if key in only_ref)  # noqa: SIM118 - no mapping
    return replace(pairing, matched=tuple(matches), only_ref=tuple(ordered))


def _paired_twice(dumps: Dumps, matches: Iterable[Match]) -> tuple[list[str], list[str]]:
    """Returns values of the reference that share their counterpart with another, and such values of the candidate."""
    values = [match for match in matches if split_key(match.ref)[0] == ACTIVATION]
    owners = {match: (dumps.ref.resolve(match.ref), dumps.cand.resolve(match.cand)) for match in values}
    ref, cand = (Counter(pair[side] for pair in set(owners.values())) for side in (0, 1))
    return (
        [match.ref for match, pair in owners.items() if cand[pair[1]] > 1],
        [match.cand for match, pair in owners.items() if ref[pair[0]] > 1],
    )


def _partial_gradients(source: DumpSource, values: Iterable[str], counterparts: Mapping[str, str]) -> dict[str, Match]:
    """Returns the partial gradients of one dump by key, each with the match of the value that it belongs to.

    A gradient is partial where its value is a loop output that equals an iteration's output, and it does not itself
    equal the gradient of that output.
    """
    known = frozenset(source.keys())
    found: dict[str, Match] = {}
    for match in by_iterations(source, values, counterparts):
        gradient = key_of(ACTIVATION_GRAD, split_key(match.ref)[1])
        if gradient in known and not any(by_iterations(source, [gradient], counterparts)):
            found[gradient] = match
    return found
