"""`without_applied` drops pairs by name of which one value is a function of the other that both programs apply.

One program may have an activation function inside of a layer, and the other behind it, under one name. Such a pair
differs in every layer, whatever else is right. Where the layer reads values that differ, what is made of them differs
as much, and is a function of the other value but for that. The pairs are gone over in execution order, so that the
error of one that is dropped is inherited by none.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from gradscope.comparison.diagnosis.refuting.apart.functions_between import unlike_function
from gradscope.comparison.diagnosis.refuting.apart.steps_apart import steps_apart
from gradscope.comparison.diagnosis.refuting.behind.errors_behind import InheritedErrors, relative_error
from gradscope.comparison.diagnosis.refuting.behind.norm_pairs import NormPairs
from gradscope.comparison.diagnosis.refuting.behind.values_behind import ValuesBehind
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, gradient_key, key_of, split_key

#: The passes that pair by names, which may be of another step.
_BY_NAME: Final = ("name", "path")


def without_applied(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]
) -> tuple[Pairing, dict[str, str], dict[str, str]]:
    """Returns a pairing without pairs by name of a function's argument and value, and what their tensors are.

    Last comes what those pairs are, by the reference's keys, of which the program that has the argument applies another
    function.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [
        match
        for match in pairing.matched
        if match.matched_by in _BY_NAME
        and rows[match.ref].status == "different"
        and split_key(match.ref)[0] == ACTIVATION
    ]
    if not differing:
        return pairing, {}, {}
    sources = forward_sources(dumps.ref)
    errors = InheritedErrors(dumps.ref, sources, {each.ref: rows[each.ref] for each in pairing.matched})
    biases = [
        match
        for match in pairing.matched
        if rows[match.ref].status == "same"
        and split_key(match.ref)[0] == PARAM
        and len(dumps.ref.entry(match.ref).shape) == 1
    ]
    behind, norms = ValuesBehind(dumps, pairing, rows), NormPairs(dumps, pairing)
    factors: dict[str, float] = {}
    around = NearestKeys(sources, ChainMap(errors.known, factors))
    agreeing: dict[str, str] = {}
    dropped: set[str] = set()
    unlike: dict[str, str] = {}
    for match in sorted(differing, key=lambda each: dumps.ref.entry(each.ref).site.index):
        owner, tolerance = dumps.ref.resolve(match.ref), errors.tolerance(match.ref)
        read = [factors[each] for each in around.behind(owner) if each in factors]
        agrees = partial(behind.agrees, match)
        found = (
            None
            if tolerance is None or norms.are_of_one(match, tolerance)
            else steps_apart(dumps, match, tolerance, biases=biases, factors=read, agrees_behind=agrees)
        )
        if found is not None and found.applied:
            gradient = key_of(ACTIVATION_GRAD, split_key(match.ref)[1])
            dropped |= {match.ref} if found.shifted else {match.ref, gradient}
            agreeing.update(with_loop_outputs(pairing, match, found.stages))
            errors.drop(match.ref)
            factors |= {} if found.factor is None else {owner: found.factor}
        elif found is not None and found.function is not None and found.applied is False:
            other = unlike_function(dumps, match, found.function)
            unlike |= {} if other is None else {match.ref: other.words}
            errors.replace(match.ref, relative_error(rows[match.ref]) if other is None else other.error)
    return without(dumps, pairing, dropped), agreeing, unlike


def with_loop_outputs(pairing: Pairing, match: Match, stages: Mapping[str, str]) -> dict[str, str]:
    """Returns what tensors are of each other, in words, with the outputs of loops that are those of last iterations.

    Args:
        pairing: The pairing.
        match: A pair of two steps.
        stages: What each value of the pair, and its gradient, is in words, by their keys.
    """
    values = [(key, match.ref if of_ref else match.cand) for key, of_ref in _loop_outputs(pairing, match)]
    outputs = [*values, *((gradient_key(key), gradient_key(of)) for key, of in values)]
    return {**stages, **{key: stages[of] for key, of in outputs if of in stages}}


def _loop_outputs(pairing: Pairing, match: Match) -> Iterator[tuple[str, bool]]:
    """Yields the outputs of loops that are paired with a value of a pair, and whether each is the reference's."""
    outputs = (each for each in pairing.matched if each.matched_by == "iterations" and each.recipe.plain)
    yield from ((each.ref, True) for each in outputs if each.cand == match.cand and each.ref != match.ref)
    yield from ((each.ref, False) for each in pairing.inverse if each.recipe.plain and each.cand == match.ref)


def without(dumps: Dumps, pairing: Pairing, dropped: Collection[str]) -> Pairing:
    """Returns a pairing without some of its pairs, and without outputs of loops that are paired as those are.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        dropped: The reference's keys of the pairs.
    """
    if not dropped:
        return pairing
    pairs = [match for match in pairing.matched if match.ref in dropped]
    outputs = [each for match in pairs for each in _loop_outputs(pairing, match)]
    dropped = {*dropped, *(key for key, of_ref in outputs if of_ref)}
    of_cand = {key for key, of_ref in outputs if not of_ref}
    matched = tuple(match for match in pairing.matched if match.ref not in dropped)
    used = {key for match in matched for key in match.recipe.keys}
    freed = {key for match in pairing.matched if match.ref in dropped for key in match.recipe.keys} - used
    return replace(
        pairing,
        matched=matched,
        inverse=tuple(match for match in pairing.inverse if match.ref not in of_cand),
        only_ref=_in_order(dumps.ref, {*pairing.only_ref, *dropped}),
        only_cand=_in_order(dumps.cand, {*pairing.only_cand, *freed, *of_cand}),
    )


def _in_order(source: DumpSource, keys: Collection[str]) -> tuple[str, ...]:
    return tuple(filter(keys.__contains__, source.keys()))
