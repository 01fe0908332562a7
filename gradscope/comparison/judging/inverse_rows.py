"""`inverse_rows` judges tensors of the candidate that are made of those of the reference, not the other way round.

Those are outputs of loops, of which the reference has the iterations, and values that the reference repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.judge import judge
from gradscope.comparison.judging.limits.noise import DefaultLimits, in_noise_floors, noise_limit
from gradscope.comparison.judging.rounding.pair_floors import PairFloors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.operands import StoredOperand, counterpart
from gradscope.comparison.metrics.evidence import PairEvidence, evidence_of
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import split_key


def inverse_rows(dumps: Dumps, inverse: Iterable[Match], options: CompareOptions) -> Iterator[ComparisonRow]:
    """Yields the rows of inverse pairs.

    Args:
        dumps: The dumps of the pairs.
        inverse: Keys of the candidate, and recipes that make their counterparts of the reference's tensors.
        options: How strictly they are judged.

    Yields:
        A row under the candidate's name, at the execution index of the reference's last iteration; under the
        reference's where that has more of the value.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    limits, floors = DefaultLimits.of_whole(dumps, options.cand_dtype), PairFloors(dumps.cand, dumps.ref)
    for match in inverse:
        parts = [dumps.ref.entry(dumps.ref.resolve(key)) for key in match.recipe.keys]
        entry, owner = dumps.cand.entry(match.ref), dumps.cand.entry(dumps.cand.resolve(match.ref))
        noise = _largest(limits.noise_floor(part, owner) for part in parts)
        evidence = _evidence(dumps, match, options)
        evidence = evidence.with_metrics(noise=in_noise_floors(evidence.metrics.get("rel_l2"), noise))
        limit = limits.tolerance(parts[-1], entry) if noise is None else noise_limit(noise)
        dtype = limits.dtype(parts[-1], entry)
        rounding = None if dtype is None else floors.floor(match.ref, match.recipe.keys, dtype)
        tolerance = options.tolerance(entry.name, match.ref, limit)
        row = judge(match, _at_index_of(parts[-1], entry), evidence, tolerance, rounding)
        # An output of a loop has the name that it has; of two values of other sizes, the row is the reference's.
        of_ref = len(parts) == 1 and match.matched_by != "iterations"
        yield replace(row, name=split_key(match.recipe.keys[0])[1], counterpart=entry.name) if of_ref else row


def _evidence(dumps: Dumps, match: Match, options: CompareOptions) -> PairEvidence:
    cand = StoredOperand(source=dumps.cand, key=dumps.cand.resolve(match.ref))
    return evidence_of(counterpart(dumps.ref, match.recipe), cand, options.closeness)


def _largest(floors: Iterable[float | None]) -> float | None:
    known = [floor for floor in floors if floor is not None]
    return max(known, default=None)


def _at_index_of(last: Entry, entry: Entry) -> Entry:
    """Returns the candidate's entry with the execution index of the reference's last iteration."""
    return replace(entry, site=replace(entry.site, index=last.site.index))
