"""`compare` runs the pipeline from two dumps to a `Comparison`.

1. `paired` pairs tensors (`pairing`).
2. `judged` measures each pair of *owners*, the entries that hold the values behind any aliases, once and several at a
   time (`metrics`), and judges every pair of names by the evidence of its owners (`judging`).
3. `compare` adds the rows of names in one dump only, and what explains the differences (`diagnosis`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Final, Protocol, TypeAlias, TypeVar

from gradscope.comparison.diagnosis.divergence import Program, blame_of, with_inputs_paired
from gradscope.comparison.diagnosis.growth import Error, growths, is_made_here
from gradscope.comparison.diagnosis.likely_causes import diagnosis, names_by_hash
from gradscope.comparison.diagnosis.likely_parts import with_likely_parts
from gradscope.comparison.diagnosis.refuted_guesses import without_refuted
from gradscope.comparison.diagnosis.run_differences import extent_differences, provenance_differences
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.judge import judge, one_sided
from gradscope.comparison.judging.loop_output_rows import loop_output_rows
from gradscope.comparison.judging.noise import WITHIN, DefaultLimits, in_noise_floors
from gradscope.comparison.judging.rounding_floors import Floor, RoundingFloors, is_within
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unmatched import unmatched
from gradscope.comparison.layout.operands import StoredOperand, counterpart
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.metrics.evidence import PairEvidence, evidence_of
from gradscope.comparison.metrics.example_errors import example_error
from gradscope.comparison.metrics.example_spread import ExampleError
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.passes import counterparts, require_matches
from gradscope.comparison.result import Comparison
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import key_of
from gradscope.naming.patterns import Pattern

_DEFAULTS: Final = CompareOptions()

#: The key of the reference's owner, and the recipe of its counterpart over the candidate's owners.
_Owners: TypeAlias = tuple[str, Recipe]

_One = TypeVar("_One")
_Other = TypeVar("_Other")


def compare(ref: DumpSource, cand: DumpSource, *, options: CompareOptions = _DEFAULTS) -> Comparison:
    """Compares two dumps, tensor by tensor.

    Args:
        ref: The reference.
        cand: The candidate.
        options: Which names are compared, and how strictly.

    Returns:
        The comparison; true where the dumps are the same within tolerance.

    Raises:
        UsageError: A pattern selects nothing, an `allow_missing` is not a regular expression, or the steps of a map
            rule do not fit the shapes.
        DumpError: One of the dumps is damaged.
    """
    allowed = [Pattern.parse(f"re:{regex}") for regex in options.allow_missing]
    dumps = Dumps(ref=ref, cand=cand)
    require_matches(dumps, options.selection)

    pairing = paired(dumps, options)
    pairs, evidence = _measured(dumps, pairing.matched, options)
    rows = _matched_rows(pairs, evidence, options)
    unrefuted = without_refuted(dumps, pairing, rows)
    pairing = unrefuted.pairing
    if len(pairing.matched) < len(rows):  # what is no pair makes no error, which another row would inherit
        rows = _matched_rows(replace(pairs, matches=pairing.matched), evidence, options)
    missing, extra = unmatched(dumps, pairing, rows, unrefuted.agreeing)
    rows |= {
        key: one_sided(each, allowed, cand.manifest.ledger) for key, each in zip(pairing.only_ref, missing, strict=True)
    }
    ordered = ref.keys()
    rows |= _diagnosed(dumps, pairing.matched, rows)
    sources = {each.ref: _source(dumps, each) for each in pairing.matched}
    rows = {key: replace(row, source=sources.get(key, row.source)) for key, row in rows.items()}
    every = (
        *(rows[key] for key in ordered if key in rows),
        *loop_output_rows(dumps, pairing.inverse, options),
        *(one_sided(each, allowed, ref.manifest.ledger) for each in extra),
    )
    programs = _programs(dumps, pairing)
    every = with_inputs_paired(with_likely_parts(dumps, every, unrefuted.related), *programs)
    return Comparison(
        rows=every,
        blame=blame_of(every, *programs),
        extent_differences=extent_differences(ref, cand),
        provenance_differences=provenance_differences(ref.manifest.provenance, cand.manifest.provenance),
        matches=pairing.matched,
        examples=_examples(ref, rows, options),
    )


def _source(dumps: Dumps, match: Match) -> str | None:
    """Returns the line of a pair's value in the candidate's code, which is the one that has changed."""
    return dumps.cand.entry(match.cand).site.source or dumps.ref.entry(match.ref).site.source


def paired(dumps: Dumps, options: CompareOptions) -> Pairing:
    """Returns the pairing of two dumps that a comparison uses.

    Args:
        dumps: The dumps.
        options: The map rules, and which names take part.
    """
    return counterparts(dumps, options.map_rules, options.selection, _mapper(options))


def judged(dumps: Dumps, matches: Sequence[Match], options: CompareOptions) -> dict[str, ComparisonRow]:
    """Returns the rows of pairs by the reference's keys.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        options: How strictly they are judged.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    return _matched_rows(*_measured(dumps, matches, options), options)


def _measured(
    dumps: Dumps, matches: Sequence[Match], options: CompareOptions
) -> tuple[_Pairs, dict[_Owners, PairEvidence]]:
    """Returns pairs, and how the owners of each differ."""
    pairs = _Pairs(
        dumps=dumps,
        matches=matches,
        limits=DefaultLimits(dumps, options.cand_dtype),
        rounding=RoundingFloors(dumps.ref if dumps.ref.manifest.layers else dumps.cand),
    )
    owners = list(dict.fromkeys(map(pairs.owners, matches)))
    found = _mapper(options)(lambda each: _evidence(dumps, each, options), owners)
    return pairs, dict(zip(owners, found, strict=True))


class _Mapper(Protocol):
    def __call__(self, function: Callable[[_One], _Other], values: Iterable[_One], /) -> list[_Other]: ...


def _mapper(options: CompareOptions) -> _Mapper:
    def mapped(function: Callable[[_One], _Other], values: Iterable[_One]) -> list[_Other]:
        # NumPy releases the global interpreter lock while it computes, so that threads use several cores. Each takes
        # the next value from a queue: a future for each took a tenth of comparing 18,000 small tensors (2026-11).
        found: dict[int, _Other] = {}
        waiting = deque(enumerate(values))

        def work() -> None:
            while (task := _next_of(waiting)) is not None:
                number, value = task
                try:
                    found[number] = function(value)
                except BaseException:
                    waiting.clear()  # the other threads stop
                    raise

        with ThreadPoolExecutor(max_workers=options.threads) as pool:
            for thread in [pool.submit(work) for _ in range(options.threads)]:
                thread.result()
        return [found[number] for number in range(len(found))]

    return mapped


def _next_of(waiting: deque[_One]) -> _One | None:
    """Takes the first of some values, which other threads may take, too; None where none is left."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    dumps: Dumps
    matches: Sequence[Match]
    limits: DefaultLimits
    rounding: RoundingFloors

    def owners(self, match: Match) -> _Owners:
        keys = tuple(map(self.dumps.cand.resolve, match.recipe.keys))
        recipe = match.recipe if keys == match.recipe.keys else replace(match.recipe, keys=keys)
        return self.dumps.ref.resolve(match.ref), recipe

    def noise_floor(self, match: Match) -> float | None:
        """Returns the noise floor of a pair's owners; None where there is none."""
        ref, cand = self.dumps.ref, self.dumps.cand
        return self.limits.noise_floor(ref.entry(ref.resolve(match.ref)), cand.entry(cand.resolve(match.cand)))

    def limit(self, match: Match) -> tuple[float, Floor | None]:
        """Returns the default tolerance on `rel_l2` of a pair, and how far rounding can move it."""
        ref, cand = self.dumps.ref.entry(match.ref), self.dumps.cand.entry(match.cand)
        dtype = self.limits.dtype(ref, cand)
        key = match.ref if self.dumps.ref.manifest.layers else match.cand
        return self.limits.tolerance(ref, cand), None if dtype is None else self.rounding.floor(key, dtype)


def _evidence(dumps: Dumps, owners: _Owners, options: CompareOptions) -> PairEvidence:
    key, recipe = owners
    return evidence_of(StoredOperand(source=dumps.ref, key=key), counterpart(dumps.cand, recipe), options.closeness)


def _matched_rows(
    pairs: _Pairs, evidence: Mapping[_Owners, PairEvidence], options: CompareOptions
) -> dict[str, ComparisonRow]:
    limits = [(match, *pairs.limit(match)) for match in pairs.matches]
    errors = _errors(pairs, evidence, limits)
    growth = growths(_layers(pairs.dumps), errors)
    rows: dict[str, ComparisonRow] = {}
    for match, default, rounding in limits:
        owners, floor = pairs.owners(match), pairs.noise_floor(match)
        entry, noise = pairs.dumps.ref.entry(match.ref), in_noise_floors(evidence[owners].metrics.get("rel_l2"), floor)
        own = growth.get(owners[0])
        found = evidence[owners].with_metrics(growth=own, noise=noise)
        expected = default if floor is None else floor * WITHIN
        row = judge(match, entry, found, options.tolerance(entry.name, match.ref, expected), rounding)
        rows[match.ref] = replace(row, made_here=owners[0] in errors and is_made_here(own, errors[owners[0]]))
    return rows


def _errors(
    pairs: _Pairs,
    evidence: Mapping[_Owners, PairEvidence],
    limits: Sequence[tuple[Match, float, Floor | None]],
) -> dict[str, Error]:
    """Returns the errors of pairs by the keys of the reference's owners."""
    errors: dict[str, Error] = {}
    for match, default, floor in limits:
        owners = pairs.owners(match)
        found = evidence[owners]
        # What is zero but for rounding has a relative error that means nothing.
        if floor is not None and is_within(found, floor):
            errors[owners[0]] = Error(rel_l2=0.0, tolerance=default)
        # A pair that cannot be compared counts as an infinite error, so that later layers are seen to inherit it.
        elif "rel_l2" in found.metrics or math.isinf(found.needed):
            errors[owners[0]] = Error(rel_l2=as_float(found.metrics.get("rel_l2", math.inf)), tolerance=default)
    return errors


def _diagnosed(dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> dict[str, ComparisonRow]:
    names = names_by_hash(dumps)
    differing = ((match, rows[match.ref]) for match in matches if rows[match.ref].status == "different")
    return {match.ref: replace(row, likely=diagnosis(dumps, match, row, names)) for match, row in differing}


def _examples(ref: DumpSource, rows: Mapping[str, ComparisonRow], options: CompareOptions) -> ExampleError | None:
    """Returns the error of the per-example gradients over all parameters; None where there is none."""
    known = {key: row.examples for key, row in rows.items() if row.examples is not None}
    errors = [known[key] for key in known if not rows[key].metrics["bit_equal"]]
    if not errors:
        return None
    # Equal pairs were compared by bytes alone and have no numbers yet, but they count in the batch's spread, too.
    equal = [StoredOperand(source=ref, key=ref.resolve(key)) for key in known if rows[key].metrics["bit_equal"]]
    return reduce(add, [*errors, *_mapper(options)(lambda operand: example_error(operand, operand), equal)])


def _programs(dumps: Dumps, pairing: Pairing) -> tuple[Program, Program]:
    """Returns the programs of both dumps; a reference without layers has those of the candidate."""
    ref, cand = dumps.ref, dumps.cand
    known, own = frozenset(ref.keys()), frozenset(cand.keys())
    last_parts = {match.ref: match.recipe.keys[-1] for match in pairing.inverse}
    counterparts = {match.ref: match.cand for match in pairing.matched}

    def owner_in_ref(row: ComparisonRow) -> str:
        key = key_of(row.family, row.name)
        # A loop output that only the candidate has maps to the reference's last iteration.
        key = key if key in known else last_parts.get(key, "")
        return ref.resolve(key) if key else ""

    def owner_in_cand(row: ComparisonRow) -> str:
        key = key_of(row.family, row.name)
        key = counterparts.get(key, key if key in own else "")
        return cand.resolve(key) if key else ""

    candidate = Program(layers=cand.manifest.layers, owner=owner_in_cand)
    return Program(layers=ref.manifest.layers, owner=owner_in_ref) if ref.manifest.layers else candidate, candidate


def _layers(dumps: Dumps) -> Sequence[Layer]:
    """Returns the layers of the reference, or those of the candidate where gradscope did not write the reference."""
    return dumps.ref.manifest.layers or dumps.cand.manifest.layers
