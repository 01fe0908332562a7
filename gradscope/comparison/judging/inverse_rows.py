"""Inverse pairs: rows for what the candidate alone hands out, of which the reference has the pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.judge import judge
from gradscope.comparison.judging.noise import WITHIN, Expectations, in_floors
from gradscope.comparison.judging.rows import Row
from gradscope.comparison.layout.operands import StoredSide, counterpart
from gradscope.comparison.metrics.evidence import Evidence, evidence_of
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Entry


def inverse_rows(dumps: Dumps, inverse: Iterable[Match], options: CompareOptions) -> Iterator[Row]:
    """The rows of pairs that are read the other way.

    Args:
        dumps: Where the pairs are from.
        inverse: Keys of the candidate, and what of the reference makes their counterparts.
        options: How strictly they are judged.

    Yields:
        A row under the candidate's name, at the reference's place in execution order.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    expected = Expectations(dumps)
    for match in inverse:
        pieces = [dumps.ref.entry(dumps.ref.resolve(key)) for key in match.recipe.keys]
        entry, owner = dumps.cand.entry(match.ref), dumps.cand.entry(dumps.cand.resolve(match.ref))
        floor = _largest(expected.noise_floor(piece, owner) for piece in pieces)
        found = _evidence(dumps, match, options)
        found = found.with_metrics(noise=in_floors(found.metrics.get("rel_l2"), floor))
        limit = expected.tolerance(pieces[-1], entry) if floor is None else floor * WITHIN
        yield judge(match, _placed(entry, pieces[-1]), found, options.tolerance(entry.name, match.ref, limit))


def _evidence(dumps: Dumps, match: Match, options: CompareOptions) -> Evidence:
    cand = StoredSide(source=dumps.cand, key=dumps.cand.resolve(match.ref))
    return evidence_of(counterpart(dumps.ref, match.recipe), cand, options.closeness)


def _largest(floors: Iterable[float | None]) -> float | None:
    known = [floor for floor in floors if floor is not None]
    return max(known, default=None)


def _placed(entry: Entry, last: Entry) -> Entry:
    """The candidate's entry, in the order of the reference behind the last of its pieces."""
    return replace(entry, site=replace(entry.site, index=last.site.index))
