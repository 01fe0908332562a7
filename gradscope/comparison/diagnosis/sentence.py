"""The sentence of a verdict says where two runs first differ, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from gradscope.comparison.default_tolerances import FULL
from gradscope.comparison.diagnosis.clauses import (
    MOST_NAMES,
    given,
    kept_alone,
    one_sided,
    others,
    quoted,
    rearranged,
    reordered,
    some_of,
    unproven,
)
from gradscope.comparison.diagnosis.divergence import BACKWARD, FORWARD, READS, Blame, Divergence
from gradscope.comparison.diagnosis.growth import FLAGGED
from gradscope.comparison.diagnosis.likely.different_batches import DifferentBatches
from gradscope.comparison.diagnosis.likely.dropouts import OF_DROPOUTS
from gradscope.comparison.diagnosis.likely.likely_causes import AT_KINKS, MULTIPLE
from gradscope.comparison.diagnosis.likely.losses.loss_difference import LossDifference
from gradscope.comparison.diagnosis.same_sentence import agreement, of_products
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, AUX, INPUT, is_gradient, key_of
from gradscope.naming.paths import loops_around, without_occurrence
from gradscope.naming.wording import brief, times

#: How many times the tolerance an error may be that calibration would settle.
_NEAR: Final = 20


def different_sentence(
    rows: Sequence[ComparisonRow],
    divergence: Divergence,
    blame: Blame,
    losses: LossDifference | None = None,
    products: str = FULL,
    *,
    batches: DifferentBatches | None = None,
) -> str:
    """Returns the sentence for two runs that differ.

    Args:
        rows: All rows.
        divergence: The first rows over tolerance.
        blame: Where they come from.
        losses: How the losses differ; None where they agree, or are not known.
        products: The dtype of `Comparison.products`.
        batches: How the batches differ; None where they do not, or where that is not known.
    """
    if batches is not None and batches.sizes_differ:
        return _of_sizes(rows, batches)
    explained = "" if losses is None or not losses.explains else f"{_capitalised(losses.sentence)}. "
    explained += "" if batches is None else f"{batches.sentence}. "
    advice = f" {batches.advice}." if batches is not None and batches.advice else ""
    apart = batches is not None and not batches.advice
    return explained + _of_rows(rows, divergence, blame, losses, apart=apart) + of_products(products) + advice


def first_named(divergence: Divergence, blame: Blame) -> ComparisonRow | None:
    """Returns the row whose place the sentence names first; None where it names none.

    Args:
        divergence: The first rows over tolerance.
        blame: Where they come from.
    """
    first = divergence.forward or divergence.backward
    if blame.unrecorded or not blame.suspects:
        return first
    turned = [row for row in blame.suspects if row.status == "same"]
    return (turned or _by_side(blame.suspects)[0][1])[0]


def _of_sizes(rows: Sequence[ComparisonRow], batches: DifferentBatches) -> str:
    """Returns the sentence for batches of different sizes, with what does not follow from that."""
    besides = given([row for row in rows if row.family != INPUT])
    rest = [*([_uncapitalised(besides)] if besides else []), *one_sided(rows), *kept_alone(rows)]
    return f"{'; '.join([batches.sentence, *rest])}. {batches.advice}."


def _of_rows(
    rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame, losses: LossDifference | None, *, apart: bool
) -> str:
    if losses is not None and losses.at_loss:
        divergence = replace(divergence, forward=None)
    rest = [
        *_new_errors(rows, divergence, blame),
        *others(rows, divergence, blame),
        *rearranged(rows, blame),
        *unproven(rows),
        *([] if apart else reordered(rows)),
        *([] if losses is None or losses.explains or losses.in_rows or losses.at_loss else [losses.sentence]),
        *one_sided(rows),
        *kept_alone(rows),
    ]
    begin, directions = given(rows), _directions(rows, divergence, blame, losses)
    sentences = [begin, *directions] if begin else directions
    if directions:
        sentences[-1] += "".join(f"; {each}" for each in rest)
    elif rest:
        sentences.append(_capitalised("; ".join(rest)))
    return ". ".join(sentences) + f".{_advice(rows, blame)}"


def _directions(
    rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame, losses: LossDifference | None
) -> list[str]:
    seen = {row.family for row in rows if row.compared}
    backwards = blame if divergence.backward_only else Blame()
    made_backward = "" if divergence.backward is None else _made_backward(divergence.backward, blame)
    first_backward = divergence.backward and _without_growth_behind(divergence.backward, divergence.forward)
    forward, backward = (
        f"{name} {_where(first, made, _outside(unpaired, blame.parts), own)}"
        if first is not None
        else (f"{name} {agreement(rows, families)}" if seen.intersection(families) else "")
        for name, first, families, made, unpaired, own in (
            ("Forward", divergence.forward, FORWARD, _in_layers([blame.part]), blame.unpaired, blame),
            ("Backward", first_backward, BACKWARD, made_backward, blame.unpaired_gradients, backwards),
        )
    )
    if blame.origin is not None:
        origin = f"{quoted(blame.origin.name)}{_in_brackets(blame.origin, '')}"
        begins = f", and the error begins at {origin}, within its tolerance"
        forward, backward = (forward + begins, backward) if divergence.forward else (forward, backward + begins)
    if losses is not None and losses.at_loss:
        return [each for each in (_at_loss(losses), backward) if each]
    if forward and backward and divergence.backward_only:
        return [f"Backward only: {_uncapitalised(forward)}, {_uncapitalised(backward)}"]
    if forward and backward and divergence.forward is None and _are_gradients(rows):
        agree = "so do the gradients of activations" if forward.endswith("agrees") else "gradients of activations agree"
        return [f"Backward only: {_uncapitalised(forward)}, and {agree}"]
    return [each for each in (forward, backward) if each]


def _without_growth_behind(gradient: ComparisonRow, forward: ComparisonRow | None) -> ComparisonRow:
    """Returns the first gradient that differs, without the growth of its error behind a forward difference.

    There the rule of its layer kept other values, of which the gradient is made, so that it differs by itself. Nor does
    a gradient need it of which is known what the reference's has beside it.
    """
    behind = gradient.explained or (forward is not None and forward.index <= gradient.index)
    return replace(gradient, made_here=False, inputs_paired=False) if behind else gradient


def _outside(rows: Sequence[ComparisonRow], parts: Collection[str]) -> list[ComparisonRow]:
    return [row for row in rows if key_of(row.family, row.name) not in parts]


def _at_loss(losses: LossDifference) -> str:
    """Returns that the loss is the first value that differs, and what is in one program alone before it."""
    before = f", and before it {_alone(losses.alone)}" if losses.alone else ""
    return f"Forward {'' if losses.alone else 'first '}differs at the loss ({losses.values}){before}"


def _in_layers(makers: Sequence[str]) -> str:
    """Returns in which layers something was made, in words; "" where none is named."""
    return f"in {some_of(named)}" if (named := [*filter(None, makers)]) else ""


def _made_backward(first: ComparisonRow, blame: Blame) -> str:
    """Returns where the first gradient that differs was made, in words; "" where that is not known."""
    makers, before = [path for path in blame.makers if path not in blame.right], list(blame.code_before)
    them = "it" if len(before) == 1 else "them"
    between = [f"between {quoted(first.name)} and {them if before == makers else some_of(before)}"] if before else []
    *some, last = (["in the loss"] if blame.by_loss else []) + [*filter(None, (_in_layers(makers), *between))] or [""]
    return f"{', '.join(some)} or {last}" if some else last


def _where(first: ComparisonRow, made: str, unpaired: Sequence[ComparisonRow], blame: Blame) -> str:
    """Returns where a direction first differs, as far as that is known; the suspects of a blame are those of it."""
    if blame.unrecorded:
        bare = _in_brackets(replace(first, made_here=False, inputs_paired=False), made)
        return f"first differs at {quoted(first.name)}{bare}, {blame.unrecorded}"
    place = f"{quoted(first.name)}{_in_brackets(first, made)}"
    if turned := [row for row in blame.suspects if row.status == "same"]:
        orders = " or ".join(f"{quoted(row.name)}, which agrees in another order ({row.made_by})" for row in turned)
        return f"first differs at {orders} that nothing else has, or at {place}"
    if blame.suspects:
        and_or = "and next" if blame.made_before else "or"
        by_side = ((side, _with_whole_loops(own)) for side, own in _by_side(blame.suspects))
        suspects = ", or at ".join(f"{some_of(names)}, only in the {side}" for side, names in by_side)
        what = _what(blame.suspects)
        if not what and first.likely.startswith(READS):  # what such steps are is known by what is read
            place = f"{quoted(first.name)}{_in_brackets(replace(first, explained=True), made)}"
        return f"first differs at {suspects}, {and_or} at {place}{what}"
    return f"differs at {place}, and before it {_alone(unpaired)}" if unpaired else f"first differs at {place}"


def _alone(rows: Sequence[ComparisonRow]) -> str:
    """Returns which of some rows are only in one of the dumps, and what they are: `a` is only in the reference."""
    by_side = ((side, _with_whole_loops(own)) for side, own in _by_side(rows))
    sides = ((some_of(names), "is" if len(names) == 1 else "are", side) for side, names in by_side)
    return " and ".join(f"{some} {verb} only in the {side}" for some, verb, side in sides) + _what(rows)


def _by_side(rows: Sequence[ComparisonRow]) -> list[tuple[str, list[ComparisonRow]]]:
    """Returns rows by the side that has them, that of the first row first.

    Of many, as of the steps of a loop which the other program has as one layer, the side with fewer comes first.
    """
    sides: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        sides.setdefault("reference" if row.status == "missing" else "candidate", []).append(row)
    return sorted(sides.items(), key=lambda side: len(side[1]) > MOST_NAMES)


def _with_whole_loops(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns the names of rows, those of the iterations of a loop as one where there are many: `cell[*]`."""
    names = [row.name for row in rows]
    if len(names) <= MOST_NAMES:
        return names
    loops = [(name, next(loops_around(name), None)) for name in names]
    return [*dict.fromkeys(name if loop is None else f"{loop}[*]" for name, loop in loops)]


def _what(rows: Sequence[ComparisonRow]) -> str:
    """Returns a clause about what the first of some rows is of another."""
    # Both of two rows that belong together say so: one is enough.
    likely = [row for row in rows if row.likely and row.family == ACTIVATION]
    likely.sort(key=lambda row: row.status != "missing")
    known = [f"{quoted(row.name)} is {row.likely}" for row in likely]
    return "".join(f", where {each}" for each in known[:1])


def _are_gradients(rows: Sequence[ComparisonRow]) -> bool:
    """Returns whether rows differ, and all of these are gradients."""
    differing = [row for row in rows if row.status == "different"]
    return bool(differing) and all(is_gradient(row.family) for row in differing)


def _in_brackets(row: ComparisonRow, where: str) -> str:
    if "rel_l2" not in row.metrics:
        return f" ({row.why})"
    growth = as_float(row.metrics.get("growth", 0.0)) if row.inputs_paired else 0.0
    blame = f", {times(growth)} that of its inputs" if FLAGGED < growth < math.inf else ""
    blame = f", made here{'' if row.reads_recorded else ' or right before it'}" if row.made_here else blame
    noise = f", {times(as_float(row.metrics['noise']))} noise" if "noise" in row.metrics else ""
    made = f", made {where}" if growth > FLAGGED and where else ""
    blame = "" if made and row.made_here else blame
    rel_l2 = f"rel_l2 {brief(as_float(row.metrics['rel_l2']))}"
    apart = f"{row.why}; {rel_l2} elsewhere" if row.metrics["nonfinite_mismatch"] else rel_l2
    own = row.explained or (row.family == ACTIVATION and (row.made_here or growth > FLAGGED))
    own = own or row.likely.startswith(OF_DROPOUTS) or row.likely.endswith(MULTIPLE)
    told = own or row.family in (AUX, ACTIVATION_GRAD)
    likely = f"; it {row.likely}" if told and row.likely else ""
    # A pair that only its place suggests is worth a look at both places.
    other = f"; {quoted(row.counterpart)} in the candidate" if row.matched_by == "order" and row.counterpart else ""
    return f" ({apart}{blame}{noise}{made}{likely}{other})"


def _new_errors(rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame) -> list[str]:
    """Returns a clause about tensors, other than the first, that differ by far more than all of their sources."""
    # Where the first one differs in what its layer reads, so do those of its other calls.
    # A module that returns what its last layer returns has the same tensor by another name.
    told = {repr(each.metrics) for each in (divergence.forward, divergence.backward) if each is not None}
    # A gradient is also made of the values that the rule of its layer kept, which differ where the forward pass does.
    directed = (*FORWARD, *BACKWARD) if divergence.forward is None else FORWARD
    first = without_occurrence(divergence.forward.name) if divergence.forward is not None and blame.unrecorded else ""
    made: list[str] = []
    for row in rows:
        is_new = row.family in directed and row.status == "different" and row.inputs_paired
        is_new = is_new and key_of(row.family, row.name) not in blame.beside
        is_new = is_new and as_float(row.metrics.get("growth", 0.0)) > FLAGGED and without_occurrence(row.name) != first
        if is_new and (metrics := repr(row.metrics)) not in told:
            told.add(metrics)
            made.append(row.name)
    return [f"error is made anew at {some_of(list(dict.fromkeys(made)))}"] if made else []


def _advice(rows: Sequence[ComparisonRow], blame: Blame) -> str:
    """Returns a sentence that suggests calibration, where it would settle the differences: small ones, and kinks."""
    differing = [row for row in rows if row.counts and row.status != "same"]
    known = any(row.likely and row.explained for row in differing) or blame.unrecorded.startswith("which ")  # no noise
    near = not known and all(row.tolerance and (row.needed or math.inf) <= _NEAR * row.tolerance for row in differing)
    settled = any(row.likely.endswith(AT_KINKS) for row in differing) or near
    if not settled or any("noise" in row.metrics for row in rows):
        return ""
    return " A reference made with `gradscope calibrate` would tell whether that is noise."


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]
