"""`compare` runs the pipeline from two dumps to a `Comparison`.

1. `paired` pairs tensors (`pairing`).
2. `judged` measures each pair of *owners*, the entries that hold the values behind any aliases, once and several at a
   time (`metrics`), and judges every pair of names by the evidence of its owners (`judging`).
3. `compare` adds the rows of names in one dump only, and what explains the differences (`diagnosis`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from operator import add
from typing import Final, NamedTuple

from gradscope.comparison.default_tolerances import FULL
from gradscope.comparison.diagnosis.divergence import blame_of
from gradscope.comparison.diagnosis.growth import errors_of, growths, is_made_here
from gradscope.comparison.diagnosis.likely.different_batches import different_batches
from gradscope.comparison.diagnosis.likely.likely_causes import with_likely_causes
from gradscope.comparison.diagnosis.likely.likely_parts import with_likely_parts
from gradscope.comparison.diagnosis.likely.losses.loss_difference import loss_difference
from gradscope.comparison.diagnosis.likely.other_forms import with_other_forms
from gradscope.comparison.diagnosis.likely.running_statistics import RunningStatistics
from gradscope.comparison.diagnosis.refuting.refuted_guesses import Unrefuted, without_refuted
from gradscope.comparison.diagnosis.runs.run_differences import extent_differences, provenance_differences
from gradscope.comparison.diagnosis.suspects.replaying.carried_errors import CarriedErrors
from gradscope.comparison.diagnosis.suspects.suspects import with_suspects
from gradscope.comparison.diagnosis.unpaired_sources import Program, with_what_is_read
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.inverse_rows import inverse_rows
from gradscope.comparison.judging.judge import Unmatched, judge, one_sided
from gradscope.comparison.judging.limits.common_factors import CommonFactors
from gradscope.comparison.judging.limits.joint_sources import joint_sources
from gradscope.comparison.judging.limits.measured_pairs import MeasuredPair, measured_pairs
from gradscope.comparison.judging.limits.noise import DefaultLimits, in_noise_floors
from gradscope.comparison.judging.loss_comparison import loss_limit, with_loss_compared
from gradscope.comparison.judging.rounding.accumulated_rounding import accumulated_tolerances
from gradscope.comparison.judging.rounding.kinked_gradients import kinked_tolerances, kinked_why
from gradscope.comparison.judging.rounding.kinks import Kinks
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unpaired.different_models import different_models
from gradscope.comparison.judging.unpaired.incomparable_inputs import in_need_of_no_tolerance
from gradscope.comparison.judging.unpaired.unmatched import unmatched
from gradscope.comparison.layout.operands import StoredOperand
from gradscope.comparison.metrics.examples.example_errors import example_error
from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.comparison.metrics.threads import mapper
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.passes import counterparts, names_in
from gradscope.comparison.pairing.values.cut_gradients import cut_gradients
from gradscope.comparison.pairing.values.misnamed import equal_to_freed
from gradscope.comparison.result import Comparison
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, Selection, key_of
from gradscope.naming.selecting.patterns import Pattern

_DEFAULTS: Final = CompareOptions()


def compare(ref: DumpSource, cand: DumpSource, *, options: CompareOptions = _DEFAULTS) -> Comparison:
    """Compares two dumps, tensor by tensor.

    Args:
        ref: The reference.
        cand: The candidate.
        options: Which names are compared, and how strictly.

    Returns:
        The comparison; true where the dumps are the same within tolerance.

    Raises:
        UsageError: A pattern, of a tolerance too, matches nothing, an `allow_missing` is not a regular expression, or
            the steps of a map rule do not fit the shapes.
        DumpError: One of the dumps is damaged.
    """
    allowed = [Pattern.parse(f"re:{regex}") for regex in options.allow_missing]
    dumps = Dumps(ref=ref, cand=cand)
    options.require_matches(names_in(dumps))

    pairing = paired(dumps, options)
    pairs, kinks = measured_pairs(dumps, pairing.matched, options), Kinks(dumps)
    whole = None if options.selection == Selection() else cache(partial(_whole, dumps, options, kinks))
    rows = _matched_rows(dumps, pairs, options, kinks, whole)
    kept_pairs = without_refuted(dumps, pairing, rows, None if whole is None else lambda: whole().unrefuted)
    before, pairing = pairing, kept_pairs.pairing
    if len(pairing.matched) < len(rows):  # what is no pair makes no error, which another row would inherit
        kept, freed = {each.ref for each in pairing.matched}, equal_to_freed(dumps, before, pairing)
        pairing = pairing.with_matches(freed)
        pairs = [*(pair for pair in pairs if pair.match.ref in kept), *measured_pairs(dumps, freed, options)]
        rows = _matched_rows(dumps, pairs, options, kinks, whole)
    missing, extra = unmatched(dumps, pairing, rows, kept_pairs.agreeing)
    if cut := list(cut_gradients(dumps, pairing, _accounted(missing, extra))):
        pairing = pairing.with_matches(cut)
        rows = _matched_rows(dumps, [*pairs, *measured_pairs(dumps, cut, options)], options, kinks, whole)
        missing, extra = unmatched(dumps, pairing, rows, kept_pairs.agreeing)
    limit_of_loss = loss_limit(dumps, pairing.matched, rows, options.cand_dtype)
    rows |= {
        key: with_loss_compared(dumps, one_sided(each, allowed, cand.manifest.ledger), limit_of_loss)
        for key, each in zip(pairing.only_ref, missing, strict=True)
    }
    statistics = RunningStatistics(dumps)
    rows |= {} if options.bitwise or options.has_tolerance else statistics.with_divisors(pairing.matched, rows)
    rows |= with_likely_causes(dumps, pairing.matched, rows, statistics, kinks)
    rows |= with_other_forms(dumps, pairing.matched, rows) | in_need_of_no_tolerance(dumps, pairing, rows)
    rows |= {k: replace(rows[k], likely=what, explained=True) for k, what in kept_pairs.unlike.items() if k in rows}
    every = (
        *(rows[key] for key in ref.keys() if key in rows),  # noqa: SIM118 - no mapping
        *inverse_rows(dumps, pairing.inverse, options),
        *(one_sided(each, allowed, ref.manifest.ledger) for each in extra),
    )
    programs = _programs(dumps, pairing)
    every = with_what_is_read(with_likely_parts(dumps, every, kept_pairs.related), *programs)
    return Comparison(
        rows=every,
        blame=with_suspects(dumps, pairing, every, blame_of(every, *programs)),
        extent_differences=extent_differences(ref, cand),
        provenance_differences=provenance_differences(ref.manifest.provenance, cand.manifest.provenance),
        program=_program(dumps),
        has_layer_values=_has_layer_values(ref),
        products=dumps.products if any(_needs_products(each, rows) for each in pairs) else FULL,
        matches=pairing.matched,
        losses=loss_difference(dumps, pairing.matched, every, options, programs=programs, limit=limit_of_loss),
        batches=different_batches(dumps, pairing.matched, rows),
        models=different_models(dumps, pairing, rows) if whole is None else "",
        examples=_examples(dumps, rows, options),
    )


def _needs_products(pair: MeasuredPair, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether a pair differs by more than products with all digits of float32 explain, and had fewer."""
    return pair.exact_tolerance < pair.tolerance and (rows[pair.match.ref].needed or 0.0) > pair.exact_tolerance


def _program(dumps: Dumps) -> tuple[str, str] | None:
    """Returns the candidate's target and the hash of its file; None where they are not stated."""
    provenance = dumps.cand.manifest.provenance
    target, file = provenance.get("target"), provenance.get("model_sha256")
    return (target, file) if isinstance(target, str) and isinstance(file, str) else None


def _has_layer_values(source: DumpSource) -> bool:
    entries = source.manifest.entries
    return any(each.family == ACTIVATION and source.has_tensor(key_of(ACTIVATION, each.name)) for each in entries)


def paired(dumps: Dumps, options: CompareOptions) -> Pairing:
    """Returns the pairing of two dumps that a comparison uses.

    Args:
        dumps: The dumps.
        options: The map rules, and which names take part.
    """
    return counterparts(dumps, options.map_rules, options.selection, mapper(dumps.ref, options.threads))


class _Whole(NamedTuple):
    """_Whole has all pairs of two dumps, whatever is selected, and those of them that nothing refutes."""

    pairs: Sequence[MeasuredPair]
    unrefuted: Unrefuted


def _whole(dumps: Dumps, options: CompareOptions, kinks: Kinks) -> _Whole:
    pairing = paired(dumps, replace(options, selection=Selection()))
    pairs = measured_pairs(dumps, pairing.matched, options)
    return _Whole(pairs, without_refuted(dumps, pairing, _matched_rows(dumps, pairs, options, kinks)))


def unrefuted(dumps: Dumps, options: CompareOptions) -> Unrefuted:
    """Returns the pairs of all tensors, whatever is selected, that nothing which is computed from them refutes.

    Args:
        dumps: The dumps.
        options: The map rules, and how strictly pairs are judged.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    return _whole(dumps, options, Kinks(dumps)).unrefuted


def judged(
    dumps: Dumps, matches: Sequence[Match], options: CompareOptions, limits: DefaultLimits
) -> dict[str, ComparisonRow]:
    """Returns the rows of pairs by the reference's keys.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        options: How strictly they are judged.
        limits: Their limits by default.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    return _matched_rows(dumps, measured_pairs(dumps, matches, options, limits), options, Kinks(dumps))


def _accounted(*sides: Iterable[Unmatched]) -> frozenset[str]:
    """Returns the keys of tensors that need no counterpart."""
    return frozenset(
        key_of(each.entry.family, each.entry.name) for side in sides for each in side if each.why_redundant
    )


def _matched_rows(
    dumps: Dumps,
    pairs: Sequence[MeasuredPair],
    options: CompareOptions,
    kinks: Kinks,
    whole: Callable[[], _Whole] | None = None,
) -> dict[str, ComparisonRow]:
    """Returns the rows of pairs; where only some are selected, what they are computed from is that of the whole."""
    around = pairs
    if whole is not None and not (options.bitwise or options.has_tolerance) and _is_any_over(pairs):
        around = _with_others(pairs, whole())
    errors = errors_of(around)
    sources = joint_sources(dumps, around)
    growth, rel_l2 = growths(sources, errors), {key: error.rel_l2 for key, error in errors.items()}
    epsilons = {pair.owner: pair.epsilon for pair in around if pair.epsilon and pair.owner in errors}
    matches = {pair.owner: pair.match for pair in around}
    carries = partial(CarriedErrors(dumps).carries, matches=matches)
    own = {key: each.tolerance for key, each in errors.items()}
    factors = CommonFactors(dumps.ref, around, rel_l2)
    deep = accumulated_tolerances(sources, rel_l2, own, epsilons, carries=carries, has_factor=factors.is_own)
    limits = {pair.owner: pair.limit for pair in around}
    limits |= {pair.owner: deep[pair.owner] for pair in around if pair.noise is None and pair.owner in deep}
    share = partial(kinks.share, matches=matches)
    kinked = kinked_tolerances(sources, rel_l2, limits, share, factors.is_own)
    # What has a factor alone has no errors of rounding that others would explain.
    alone = {pair.owner: pair.limit for pair in around if pair.owner in rel_l2 and factors.is_of_all(pair.owner)}
    limits, kinked = limits | alone, {key: limit for key, limit in kinked.items() if key not in alone}
    rows: dict[str, ComparisonRow] = {}
    for pair in pairs:
        entry, grown = dumps.ref.entry(pair.match.ref), growth.get(pair.owner)
        noise = in_noise_floors(pair.evidence.metrics.get("rel_l2"), pair.noise)
        expected = kinked.get(pair.owner, limits[pair.owner])
        tolerance = options.tolerance(entry.name, pair.match.ref, expected)
        is_default = tolerance is not None and tolerance.rel_l2 == expected
        rows[pair.match.ref] = judge(
            pair.match,
            entry,
            pair.evidence.with_metrics(growth=grown, noise=noise),
            tolerance,
            pair.rounding,
            source=dumps.cand.entry(pair.match.cand).site.source or entry.site.source,
            made_here=pair.owner in errors and is_made_here(grown, errors[pair.owner], pair.epsilon),
            kinked=kinked_why(share(pair.owner)) if is_default and pair.owner in kinked else "",
            accumulated=is_default and limits[pair.owner] > pair.limit and rel_l2.get(pair.owner, 0.0) > pair.limit,
        )
    statistics, own = RunningStatistics(dumps), [pair.match for pair in pairs]
    return rows if options.bitwise else rows | statistics.with_divisors_of_pytorch(own, rows)


def _is_any_over(pairs: Sequence[MeasuredPair]) -> bool:
    return any(error.rel_l2 > error.tolerance for error in errors_of(pairs).values())


def _with_others(pairs: Sequence[MeasuredPair], whole: _Whole) -> list[MeasuredPair]:
    """Returns pairs, and those of the whole that are of other tensors and are not refuted."""
    own, kept = {pair.owner for pair in pairs}, {each.ref for each in whole.unrefuted.pairing.matched}
    return [*pairs, *(pair for pair in whole.pairs if pair.match.ref in kept and pair.owner not in own)]


def _examples(dumps: Dumps, rows: Mapping[str, ComparisonRow], options: CompareOptions) -> ExampleError | None:
    """Returns the error of the per-example gradients over all parameters; None where there is none."""
    known = {key: row.examples for key, row in rows.items() if row.examples is not None}
    errors = [known[key] for key in known if not rows[key].metrics["bit_equal"]]
    if not errors:
        return None
    # Equal pairs were compared by bytes alone and have no numbers yet, but they count in the batch's spread, too.
    owners = (dumps.ref.resolve(key) for key in known if rows[key].metrics["bit_equal"])
    equal = [StoredOperand(source=dumps.ref, key=key) for key in owners]
    return reduce(
        add, [*errors, *mapper(dumps.ref, options.threads)(lambda operand: example_error(operand, operand), equal)]
    )


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

    candidate = Program.of(cand, owner_in_cand)
    return Program.of(ref, owner_in_ref) if ref.manifest.layers else candidate, candidate
