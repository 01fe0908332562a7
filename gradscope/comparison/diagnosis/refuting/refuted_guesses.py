"""`without_refuted` drops pairs that only their places suggest and that the graphs of both programs refute.

Tensors that only their places pair may be different steps of the same computation, such as an embedding before and
after positions are added. Such a pair differs, although everything that either is computed from agrees, and it leaves
no trace: everything that is computed next from either agrees. So a pair by place that claims to be where a difference
begins is kept where something behind it bears that out, in either program. A value that is added to the loss is borne
out by how far the losses are apart.

The products of one kernel with what both programs read are a pair, however small the trace that they leave: attention
may hide most of what is wrong with its queries. So are the values that such products alone are computed from.

Names that resemble each other say more than a place. What such a pair leaves no trace in may be multiplied by zero:
gradients show whether it differs (`gradient_traces`), and without them it is kept. A difference may vanish behind the
pair, as of a lost bias in a batch norm: a parameter that one program uses shows it.

A pair of which one value is a function of the other (`functions_between`) is no pair, whatever else differs, unless
gradients show that one program leaves it out, or applies another. Where they show that both apply it, one by name is
none, too (`applied_functions`). Nor is a pair of which one value has a bias that the other program adds elsewhere
(`steps_apart`), nor one that is called as a refuted one of another block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from gradscope.comparison.diagnosis.refuting.apart.functions_between import unlike_function
from gradscope.comparison.diagnosis.refuting.apart.moved_gradients import divided_gradients
from gradscope.comparison.diagnosis.refuting.apart.other_operations import other_operations
from gradscope.comparison.diagnosis.refuting.apart.pair_values import are_rearranged, carries_difference
from gradscope.comparison.diagnosis.refuting.apart.steps_apart import steps_apart
from gradscope.comparison.diagnosis.refuting.applied_functions import with_loop_outputs, without, without_applied
from gradscope.comparison.diagnosis.refuting.behind.errors_behind import InheritedErrors, loss_error, relative_error
from gradscope.comparison.diagnosis.refuting.behind.norm_pairs import NormPairs
from gradscope.comparison.diagnosis.refuting.behind.values_behind import ValuesBehind
from gradscope.comparison.diagnosis.refuting.gradient_traces import (
    GradientTraces,
    ProgramTraces,
    accounts_for_losses,
    by_owner,
    hides_from_losses,
    largest_trace,
)
from gradscope.comparison.diagnosis.refuting.hidden_biases import without_hidden_biases
from gradscope.comparison.diagnosis.refuting.kernel_products import ProductPairs
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources, lost_parameters, summed_parameters
from gradscope.comparison.diagnosis.refuting.traceless_gradients import traceless_gradients
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unpaired.incomparable_inputs import incomparable_input_gradients
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.placing.learnt_names import called_alike
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key, subject_family
from gradscope.naming.printable import printable

#: The passes that pair by places, or by names that only resemble each other.
_GUESSES: Final = ("order", "path")

#: What a gradient is of which nothing that is computed from it shows that it differs.
_TRACELESS_GRADIENT: Final = "differs where its value agrees; no compared gradient computed from it differs"

#: What is said of a value whose elements are in another order in the candidate, as if in a layout that none explains.
_UNSHOWN: Final = "has the values of `{}` in another order, and nothing that is computed from either shows it"

#: How many times as large as all errors behind it an error is that leaves no trace.
_TRACELESS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrefuted:
    """Unrefuted stores what is left of a pairing, and what is known of tensors that are no pair.

    Attributes:
        pairing: The pairs that are not refuted.
        agreeing: What tensors are that agree with those of another step, in words, by their keys.
        related: The same of tensors of which that is not known.
        unlike: What pairs are of whose values the programs apply two functions to one value, in words.
    """

    pairing: Pairing
    agreeing: Mapping[str, str] = field(default_factory=dict[str, str])
    related: Mapping[str, str] = field(default_factory=dict[str, str])
    unlike: Mapping[str, str] = field(default_factory=dict[str, str])


def without_refuted(
    dumps: Dumps,
    pairing: Pairing,
    rows: Mapping[str, ComparisonRow],
    whole: Callable[[], Unrefuted] | None = None,
) -> Unrefuted:
    """Returns a pairing without the pairs by place that are refuted.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
        whole: Returns the same of all tensors, where the pairing has only some, which show nothing of what is computed
            from them; None where it has all.
    """
    if not (dumps.ref.manifest.layers and dumps.cand.manifest.layers):
        return Unrefuted(pairing=pairing)
    pairing = without(dumps, pairing, other_operations(dumps, pairing, rows))
    pairing, hidden = without_hidden_biases(dumps, pairing, rows)
    pairing, applied, unlike = without_applied(dumps, pairing, rows)
    divided, copies = divided_gradients(dumps, pairing, rows)
    alone = dict.fromkeys(traceless_gradients(dumps, pairing, rows), _TRACELESS_GRADIENT) | divided
    found = Unrefuted(pairing=pairing, agreeing=hidden | applied | copies, unlike=unlike)
    known = _without_incomparable(dumps, found, rows, alone)
    pairing, agreeing = known.pairing, dict(known.agreeing)
    guesses = [each for each in pairing.matched if each.matched_by in _GUESSES and rows[each.ref].status == "different"]
    if not any(split_key(each.ref)[0] == ACTIVATION for each in guesses):
        return known
    if whole is None:
        found = _without_alike(dumps, rows, guesses, _without_refuted_values(dumps, pairing, rows, agreeing, guesses))
        pairing, applied, more = without_applied(dumps, found.pairing, rows)  # no wrong guess is before them any more
        found = replace(found, pairing=pairing, agreeing={**found.agreeing, **applied}, unlike={**found.unlike, **more})
        return _without_incomparable(dumps, found, rows, {})
    found = whole()
    kept = {each.ref for each in found.pairing.matched}
    refuted = {each.ref for each in pairing.matched if each.ref not in kept}
    return replace(found, pairing=without(dumps, pairing, refuted))


def _without_incomparable(
    dumps: Dumps, found: Unrefuted, rows: Mapping[str, ComparisonRow], alone: Mapping[Match, str]
) -> Unrefuted:
    """Returns what is left without pairs that alone differ, given with the reasons, and those of inputs."""
    compared = without(dumps, found.pairing, {match.ref for match in alone})
    every = {**alone, **incomparable_input_gradients(dumps, compared, rows)}
    told = {key: why for match, why in every.items() for key in (match.ref, *match.recipe.keys)}
    pairing = without(dumps, found.pairing, {match.ref for match in every})
    return replace(found, pairing=pairing, agreeing={**found.agreeing, **told})


def _without_alike(
    dumps: Dumps, rows: Mapping[str, ComparisonRow], guesses: Sequence[Match], found: Unrefuted
) -> Unrefuted:
    """Returns what is left without guesses called as refuted ones of another block, whose inputs differ, too."""
    left = {each.ref for each in found.pairing.matched}
    refuted = [each for each in guesses if each.ref not in left]
    inherited = (each for each in guesses if each.ref in left and _inherits(rows[each.ref]))
    alike = {each.ref for each in called_alike(refuted, inherited)}
    alike |= {key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in alike} & {each.ref for each in guesses}
    return replace(found, pairing=without(dumps, found.pairing, alike))


def _inherits(row: ComparisonRow) -> bool:
    return "growth" in row.metrics and not row.made_here


def _without_refuted_values(
    dumps: Dumps,
    pairing: Pairing,
    rows: Mapping[str, ComparisonRow],
    agreeing: dict[str, str],
    guesses: Sequence[Match],
) -> Unrefuted:
    values = [each for each in guesses if split_key(each.ref)[0] == ACTIVATION]
    guessed = frozenset(each.ref for each in guesses)
    known = [each for each in pairing.matched if each.ref not in guessed]
    told = [*known, *(each for each in guesses if _is_of_agreeing(each, rows))]
    summed = summed_parameters(dumps, pairing)
    lost = lost_parameters(dumps, pairing, {*summed, *agreeing})
    ref, cand = _program_traces(dumps, rows, known, told, lost)
    ordered = sorted(values, key=lambda each: dumps.ref.entry(each.ref).site.index)
    own = {
        each.ref: [(ref, dumps.ref.resolve(each.ref)), *((cand, dumps.cand.resolve(key)) for key in each.recipe.keys)]
        for each in (*known, *ordered)
    }
    certain, pairs = replace(pairing, matched=tuple(known)), {each.ref: each for each in known}
    products, norms = ProductPairs(dumps, certain), NormPairs(dumps, certain)
    borne_out, unclear, traces = _borne_out(dumps, rows, ordered, own, known)
    refuted: set[str] = set()
    related: dict[str, str] = {}
    unlike: dict[str, str] = {}
    totals: list[Match] = []
    rearranged: list[Match] = []
    matched, behind = {each.ref: rows[each.ref] for each in pairing.matched}, ValuesBehind(dumps, pairing, rows)
    errors = InheritedErrors(dumps.ref, forward_sources(dumps.ref), matched)
    for match in ordered:
        inherited = any(program.inherits(key) for program, key in own[match.ref])
        terms = (pairs[term] for program, key in own[match.ref] for term in program.agreeing_before(key))
        # What is made of values that differ is a function of the other value but for their error.
        tolerance = errors.tolerance(match.ref) if inherited else rows[match.ref].tolerance
        agrees = partial(behind.agrees, match)
        proven = not inherited and products.are_factors(match, ordered)
        apart = partial(steps_apart, summed=summed, terms=terms, totals=totals, agrees_behind=agrees)
        found = None if proven else apart(dumps, match, tolerance)
        if found is not None and found.applied is not False:
            (agreeing if found.applied else related).update(with_loop_outputs(pairing, match, found.stages))
        shows = traces[match.ref] > (rows[match.ref].tolerance or 0)
        # Another form of a function differs by much less than the value from its argument, but leaves a trace.
        other_form = found is not None and found.applied is False and shows
        kept = proven or match.ref in borne_out or match.ref in unclear
        kept = kept or (
            not inherited
            and (products.are_of_one_layer(match, rows, traces[match.ref]) or norms.are_of_one(match, tolerance))
        )
        applied = found is not None and bool(found.applied)
        if (inherited and not applied) or other_form or (kept and (found is None or found.applied is False)):
            for program, key in own[match.ref]:
                program.differing.add(key)
            function = None if found is None or found.applied is not False else found.function
            other = None if function is None else unlike_function(dumps, match, function)
            if other is not None:
                unlike[match.ref] = other.words
                errors.replace(match.ref, other.error)
        else:
            errors.drop(match.ref)
            rearranged += [match] if found is None and are_rearranged(dumps, match) else []
            shifted = found is not None and found.shifted
            totals += [match] if shifted else []
            refuted |= {match.ref} | (set() if shifted else {key_of(ACTIVATION_GRAD, split_key(match.ref)[1])})
    # Pairs behind these are decided after them.
    unshown = (each for each in rearranged if not any(program.shows(key) for program, key in own[each.ref]))
    related |= {each.ref: _UNSHOWN.format(printable(split_key(each.cand)[1])) for each in unshown}
    # A gradient that only its value pairs goes with it.
    refuted &= {each.ref for each in pairing.matched if each.matched_by in _GUESSES}
    return Unrefuted(pairing=without(dumps, pairing, refuted), agreeing=agreeing, related=related, unlike=unlike)


def _program_traces(
    dumps: Dumps,
    rows: Mapping[str, ComparisonRow],
    known: Sequence[Match],
    told: Sequence[Match],
    lost: frozenset[str],
) -> Iterator[ProgramTraces]:
    """Yields the traces of errors in the reference and in the candidate.

    Args:
        dumps: The dumps.
        rows: The rows of the pairs, by the reference's keys.
        known: The pairs that are no guesses, in which errors are compared.
        told: Those, and guesses that agree, whose gradients show errors, too.
        lost: The parameters of either program that the other does not use.
    """
    loss = loss_error(dumps, known, rows)
    for source, compared, shown in zip(
        (dumps.ref, dumps.cand), by_owner(dumps, known, rows), by_owner(dumps, told, rows), strict=True
    ):
        yield ProgramTraces(source, compared, GradientTraces(source, shown), lost, loss)


def _borne_out(
    dumps: Dumps,
    rows: Mapping[str, ComparisonRow],
    ordered: Sequence[Match],
    own: Mapping[str, Sequence[tuple[ProgramTraces, str]]],
    known: Sequence[Match],
) -> tuple[set[str], set[str], dict[str, float]]:
    """Returns the pairs that something behind them bears out, those that nothing decides, and the traces of all.

    Args:
        dumps: The dumps.
        rows: The rows of the pairs.
        ordered: The pairs by place, in execution order.
        own: The programs of each pair, with the keys of its values; of those that are no guesses, too.
        known: The pairs that are no guesses.
    """
    borne_out: set[str] = set()
    unclear: set[str] = set()
    traces: dict[str, float] = {}
    owners = {place: each for each in known for place in own[each.ref]}
    for match in reversed(ordered):  # a pair that is borne out bears out what it is computed from
        error = relative_error(rows[match.ref])
        # What is behind it differs altogether at 1: a function or a norm there hides in how large units a value is.
        error = min(error, _TRACELESS) if math.isfinite(error) else error
        # Where PyTorch's graph ends, the loss would stand for all that is behind: the other program shows more.
        telling = [each for each in own[match.ref] if each[0].tells_what_reads(each[1])]
        traces[match.ref] = largest_trace(telling or own[match.ref])
        if match.matched_by == "path":
            by_gradients = [program.gradients.largest(key) for program, key in own[match.ref]]
            traces[match.ref] = max(traces[match.ref], *(each or 0.0 for each in by_gradients))
            # Of statistics alone, the least is known that values behind it are apart by: they may be more.
            if all(each is None for each in by_gradients) or "bit_equal" not in rows[match.ref].metrics:
                unclear.add(match.ref)
        behind = (owners.get((program, each)) for program, key in own[match.ref] for each in program.readers(key))
        shown = _TRACELESS * traces[match.ref] >= error or accounts_for_losses(dumps, match, rows)
        if shown or any(each is not None and carries_difference(dumps, match, each) for each in behind):
            borne_out.add(match.ref)
            owners |= dict.fromkeys(own[match.ref], match)
            for program, key in own[match.ref]:
                program.bear_out(key, error)
        elif all(program.only_loss_is_behind(key) for program, key in own[match.ref]) and hides_from_losses(
            dumps, match, rows
        ):
            unclear.add(match.ref)
    return borne_out, unclear, traces


def _is_of_agreeing(match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether a pair is of gradients of tensors that agree, so that it is no guess."""
    family, name = split_key(match.ref)
    subject = subject_family(family)
    row = None if subject is None else rows.get(key_of(subject, name))
    return row is not None and row.status == "same"
