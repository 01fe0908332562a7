"""`measured_pairs` measures pairs, and has the limits that each is judged by where no option sets another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.noise import DefaultLimits, noise_limit
from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.judging.rounding.pair_floors import PairFloors
from gradscope.comparison.layout.operands import StoredOperand, counterpart
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.evidence import PairEvidence, evidence_of, frozen_in
from gradscope.comparison.metrics.threads import mapper
from gradscope.comparison.pairing.matching import Dumps, Match, is_of_jax
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.manifest.json_text import as_float

#: The key of the reference's owner, and the recipe of its counterpart over the candidate's owners.
_Owners: TypeAlias = tuple[str, Recipe]


class MeasuredPair(NamedTuple):
    """MeasuredPair has a pair, how the owners of its values differ, and its limits.

    Attributes:
        match: The pair.
        owner: The key of the reference's owner.
        evidence: How the owners differ.
        tolerance: The default tolerance on `rel_l2`.
        exact_tolerance: The same if float32 products had the digits of float32.
        noise: The noise floor of the owners; None where there is none.
        rounding: How far rounding can move it; None where that is not known.
        epsilon: The machine epsilon of the coarser of the types that both were computed in; 0 where there is none.
    """

    match: Match
    owner: str
    evidence: PairEvidence
    tolerance: float
    exact_tolerance: float
    noise: float | None
    rounding: Floor | None
    epsilon: float

    @property
    def limit(self) -> float:
        """The largest `rel_l2` that passes, by the noise where that is known."""
        return self.tolerance if self.noise is None else noise_limit(self.noise)


def measured_pairs(
    dumps: Dumps, matches: Sequence[Match], options: CompareOptions, limits: DefaultLimits | None = None
) -> list[MeasuredPair]:
    """Returns pairs, each with how its owners differ; those of several pairs are compared once.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        options: How strictly they are judged.
        limits: The limits of pairs by default; None for those of two whole programs.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    limits = DefaultLimits.of_whole(dumps, options.cand_dtype) if limits is None else limits
    floors = PairFloors(dumps.ref, dumps.cand)
    owners = [_owners(dumps, match) for match in matches]
    once = list(dict.fromkeys(owners))
    evidence = dict(
        zip(once, mapper(dumps.ref, options.threads)(lambda each: _evidence(dumps, each, options), once), strict=True)
    )
    pairs: list[MeasuredPair] = []
    for match, own in zip(matches, owners, strict=True):
        key, (owner, *_) = match.cand, own[1].keys
        ref, cand = dumps.ref.entry(match.ref), dumps.cand.entry(key)
        dtype = limits.dtype(ref, cand)
        rounding = None if dtype is None else floors.floor(match.ref, match.recipe.keys, dtype, evidence[own].distance)
        noise = limits.noise_floor(dumps.ref.entry(own[0]), dumps.cand.entry(owner))
        epsilon = 0.0 if dtype is None else machine_epsilon(dtype)
        tolerances = limits.tolerance(ref, cand), limits.exact_tolerance(ref, cand)
        pairs.append(MeasuredPair(match, own[0], evidence[own], *tolerances, noise, rounding, epsilon))
    return _with_summed_errors(pairs, floors)


def _with_summed_errors(pairs: Sequence[MeasuredPair], floors: PairFloors) -> list[MeasuredPair]:
    """Returns pairs, of which gradients that are sums of gradients which agree may be apart by those's differences.

    Rounding of a gradient is as large as what it was computed from, as behind a batch norm of few values, and larger
    than what its own size tells. A sum of n such differences is at most sqrt(n) times as long as all of them.
    """
    distances = {
        pair.owner: pair.evidence.distance
        for pair in pairs
        if pair.evidence.distance is not None and as_float(pair.evidence.metrics.get("rel_l2", math.inf)) <= pair.limit
    }

    def summed(pair: MeasuredPair) -> MeasuredPair:
        floor = pair.rounding
        if floor is None or pair.evidence.distance is None or pair.owner in distances:
            return pair
        moved = [distances.get(key, 0.0) for key in floors.summed(pair.match.ref)]
        inherited = math.sqrt(floor.terms) * math.hypot(*moved)
        return pair._replace(rounding=replace(floor, l2=floor.l2 + inherited, inherited=inherited))

    return [summed(pair) for pair in pairs]


def _owners(dumps: Dumps, match: Match) -> _Owners:
    keys = tuple(map(dumps.cand.resolve, match.recipe.keys))
    recipe = match.recipe if keys == match.recipe.keys else replace(match.recipe, keys=keys)
    return dumps.ref.resolve(match.ref), recipe


def _evidence(dumps: Dumps, owners: _Owners, options: CompareOptions) -> PairEvidence:
    key, recipe = owners
    if side := _frozen_side(dumps, owners):
        return PairEvidence(needed=0.0, why=frozen_in(side))
    return evidence_of(StoredOperand(source=dumps.ref, key=key), counterpart(dumps.cand, recipe), options.closeness)


def _frozen_side(dumps: Dumps, owners: _Owners) -> str:
    """Returns which program of PyTorch states that it does not differentiate a value, where one of JAX does; else "".

    A loss of JAX has the gradients of all that it takes as parameters: what is not trained, its optimizer leaves out.
    """
    key, recipe = owners
    sides = ((dumps.ref, (key,), "reference"), (dumps.cand, recipe.keys, "candidate"))
    for (source, keys, side), (other, others, _) in (sides, sides[::-1]):
        trained = is_of_jax(other) and all(other.entry(each).absent is None for each in others)
        if trained and all(source.entry(each).absent == "frozen" for each in keys):
            return side
    return ""
