"""Comparing: from two dumps to a `Comparison`.

Pairs are found by name, each pair of *owners* (the entries behind any aliases) is measured once, several at a time,
and then every pair of names is judged by the evidence of its owners.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from gradscope.compare.comparison import Comparison
from gradscope.compare.evidence import Evidence, Side, evidence_of
from gradscope.compare.growth import Error, growths
from gradscope.compare.judging import judge, one_sided
from gradscope.compare.options import CompareOptions
from gradscope.compare.pairing import Match, pair
from gradscope.compare.provenance import provenance_differences
from gradscope.compare.rows import Row
from gradscope.compare.tolerance import default_tolerance, reduced_matmul
from gradscope.dump.jsontext import as_float
from gradscope.dump.source import DumpSource
from gradscope.naming import Selection, key_of
from gradscope.naming.patterns import Pattern

_DEFAULTS: Final = CompareOptions()

#: The keys of both owners behind a pair.
_Owners: TypeAlias = tuple[str, str]


def compare(ref: DumpSource, cand: DumpSource, *, options: CompareOptions = _DEFAULTS) -> Comparison:
    """Compare two dumps, tensor by tensor.

    Args:
        ref: The reference.
        cand: The candidate.
        options: What is compared, and how strictly.

    Returns:
        The comparison; true where the dumps are the same within tolerance.

    Raises:
        UsageError: A pattern selects nothing, or an `allow_missing` is not a regular expression.
        DumpError: One of the dumps is damaged.
    """
    allowed = [Pattern.parse(f"re:{regex}") for regex in options.allow_missing]
    _require_matches(options.selection, ref, cand)
    ref_keys, cand_keys = _selected(ref, options.selection), _selected(cand, options.selection)
    pairing = pair(ref_keys, cand_keys)
    rows = _matched_rows(_Pairs(ref=ref, cand=cand, matches=pairing.matched), options)
    for key in pairing.only_ref:
        rows[key] = one_sided(ref.entry(key), "missing", allowed, cand.manifest.ledger)
    extra = [one_sided(cand.entry(key), "extra", allowed, ref.manifest.ledger) for key in pairing.only_cand]
    return Comparison(
        rows=(*(rows[key] for key in ref_keys), *extra),
        provenance_differences=provenance_differences(ref.manifest.provenance, cand.manifest.provenance),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    ref: DumpSource
    cand: DumpSource
    matches: Sequence[Match]

    def owners(self, match: Match) -> _Owners:
        return self.ref.resolve(match.ref), self.cand.resolve(match.cand)

    def default_tolerances(self) -> Iterator[tuple[Match, float]]:
        reduced = any(reduced_matmul(side.manifest.provenance) for side in (self.ref, self.cand))
        for match in self.matches:
            one, other = self.ref.entry(match.ref), self.cand.entry(match.cand)
            yield match, default_tolerance(one.family, one.dtype, other.dtype, reduced=reduced)


def _selected(source: DumpSource, selection: Selection) -> list[str]:
    return [key for key, name in _names(source) if selection.wants(name, key)]


def _require_matches(selection: Selection, *sources: DumpSource) -> None:
    selection.require_matches(chain.from_iterable(named for source in sources for named in _names(source)))


def _names(source: DumpSource) -> list[tuple[str, str]]:
    return [(key_of(entry.family, entry.name), entry.name) for entry in source.manifest.entries]


def _matched_rows(pairs: _Pairs, options: CompareOptions) -> dict[str, Row]:
    evidence = _measured(pairs, options)
    defaults = list(pairs.default_tolerances())
    growth = _growth(pairs, evidence, defaults)
    rows: dict[str, Row] = {}
    for match, default in defaults:
        owners = pairs.owners(match)
        entry, grown = pairs.ref.entry(match.ref), growth.get(owners[0])
        found = evidence[owners] if grown is None else evidence[owners].with_growth(grown)
        rows[match.ref] = judge(match, entry, found, options.tolerance(entry.name, match.ref, default))
    return rows


def _measured(pairs: _Pairs, options: CompareOptions) -> dict[_Owners, Evidence]:
    owners = list(dict.fromkeys(map(pairs.owners, pairs.matches)))

    def measured(keys: _Owners) -> Evidence:
        return evidence_of(Side(source=pairs.ref, key=keys[0]), Side(source=pairs.cand, key=keys[1]), options.closeness)

    # NumPy leaves the interpreter free while it computes, so that threads share the tensors among the cores.
    with ThreadPoolExecutor(max_workers=options.threads) as pool:
        return dict(zip(owners, pool.map(measured, owners), strict=True))


def _growth(
    pairs: _Pairs, evidence: Mapping[_Owners, Evidence], defaults: Sequence[tuple[Match, float]]
) -> dict[str, float]:
    errors: dict[str, Error] = {}
    for match, default in defaults:
        owners = pairs.owners(match)
        if "rel_l2" in (metrics := evidence[owners].metrics):
            errors[owners[0]] = Error(rel_l2=as_float(metrics["rel_l2"]), tolerance=default)
    return growths(pairs.ref.manifest.layers or pairs.cand.manifest.layers, errors)
