"""The verdict's sentences say whether two runs are the same, where they first differ, and what else differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gradscope.comparison.diagnosis.divergence import BACKWARD, FORWARD, Blame, Divergence
from gradscope.comparison.diagnosis.growth import FLAGGED
from gradscope.comparison.judging.judge import UNPROVEN
from gradscope.comparison.judging.noise import WITHIN
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.recipes import REORDERED
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import (
    ACTIVATION,
    AUX,
    EXAMPLE_GRAD,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    STATE,
    is_gradient,
    key_of,
    printable,
)
from gradscope.naming.wording import brief, counted, times

#: The nouns for tensors of families without a direction; other families are called by their names.
_NOUNS: Final = {
    INPUT: "input",
    INPUT_GRAD: "input gradient",
    PARAM: "parameter",
    PARAM_GRAD: "parameter gradient",
    EXAMPLE_GRAD: "per-example gradient",
    STATE: "state tensor",
    AUX: "auxiliary output",
}

#: The gradients that may be a consequence of the first divergence.
_GRADIENTS: Final = (PARAM_GRAD, INPUT_GRAD, EXAMPLE_GRAD)

#: How many times the tolerance an error may be that calibration would settle.
_NEAR: Final = 20

#: The largest number of names in one clause.
_SOME: Final = 3


def different_sentence(rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame) -> str:
    """Returns the sentence for two runs that differ."""
    rest = [
        *_new_errors(rows, divergence),
        *_others(rows, divergence, blame),
        *_rearranged(rows),
        *_unproven(rows),
        *_reordered(rows),
        *_one_sided(rows),
    ]
    directions = _directions(rows, divergence, blame)
    advice = _advice(rows)
    if not directions:
        return _capitalised("; ".join(rest)) + f".{advice}"
    return ". ".join(directions) + "".join(f"; {each}" for each in rest) + f".{advice}"


def same_sentence(rows: Sequence[ComparisonRow]) -> str:
    """Returns the sentence for two runs that are the same."""
    compared = [row for row in rows if row.compared]
    equal = sum(row.metrics.get("bit_equal") is True for row in compared)
    tensors = counted(len(compared), "tensor")
    undecided = sum("bit_equal" not in row.metrics for row in compared)
    bits = f"bit-equal {equal}" + (f", and {undecided} judged by statistics alone" if undecided else "")
    order = "".join(f"; {each}" for each in _reordered(rows))
    if equal == len(compared):
        return f"Same bit for bit: {tensors}{order}."
    rounded = sum(_is_rounding(row) for row in compared)
    zeros = f", {rounded} zero but for rounding" if rounded else ""
    calibrated = [row for row in compared if "noise" in row.metrics and not _is_rounding(row)]
    worst = max(calibrated, key=_noise, default=None)
    if worst is not None and _noise(worst) <= WITHIN:
        most = f"at most {times(_noise(worst))} noise at {_quoted(worst.name)}"
        return f"Same within noise: {tensors}, {most}, {bits}{zeros}{order}."
    worst = max(compared, key=lambda row: row.needed or 0.0)
    needed = worst.needed or 0.0
    how = "as far as statistics tell" if undecided else "within tolerance"
    return f"Same {how}: {tensors}, largest rel_l2 {brief(needed)} at {_quoted(worst.name)}, {bits}{zeros}{order}."


def _is_rounding(row: ComparisonRow) -> bool:
    """Returns whether a row is the same because its difference is within the floor of rounding."""
    return row.status == "same" and row.needed == 0.0 and as_float(row.metrics.get("rel_l2", 0.0)) > 0


def nothing_sentence(rows: Sequence[ComparisonRow]) -> str:
    """Returns the sentence for two dumps of which nothing was compared."""
    if any(row.matched_by for row in rows):
        return "Nothing compared: no name in common has a tensor."
    missing, extra = (sum(row.status == status for row in rows) for status in ("missing", "extra"))
    if not missing and not extra:
        return "Nothing compared: there is no name to compare."
    return f"Nothing compared: the dumps have no name in common (reference {missing}, candidate {extra})."


def _noise(row: ComparisonRow) -> float:
    return as_float(row.metrics["noise"])


def _directions(rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame) -> list[str]:
    seen = {row.family for row in rows if row.compared}
    backwards = blame if divergence.backward_only else Blame()
    forward, backward = (
        f"{name} {'agrees' if first is None else _where(first, makers, unpaired, own)}"
        if first is not None or seen.intersection(families)
        else ""
        for name, first, families, makers, unpaired, own in (
            ("Forward", divergence.forward, FORWARD, (), blame.unpaired, blame),
            ("Backward", divergence.backward, BACKWARD, blame.makers, blame.unpaired_gradients, backwards),
        )
    )
    if blame.origin is not None:
        origin = f"{_quoted(blame.origin.name)}{_in_brackets(blame.origin, ())}"
        begins = f", and the error begins at {origin}, within its tolerance"
        forward, backward = (forward + begins, backward) if divergence.forward else (forward, backward + begins)
    if forward and backward and divergence.backward_only:
        return [f"Backward only: {_uncapitalised(forward)}, {_uncapitalised(backward)}"]
    if forward and backward and divergence.forward is None and (differing := _only_gradients(rows)):
        names = _some([row.name for row in sorted(differing, key=lambda row: -row.index)])
        return [f"Backward only: forward agrees, and so do the gradients of activations, but not those of {names}"]
    return [each for each in (forward, backward) if each]


def _where(first: ComparisonRow, makers: Sequence[str], unpaired: Sequence[ComparisonRow], blame: Blame) -> str:
    """Returns where a direction first differs, as far as that is known; the suspects of a blame are those of it."""
    place = f"{_quoted(first.name)}{_in_brackets(first, makers)}"
    if blame.suspects:
        and_or = "and next" if blame.made_before else "or"
        suspects = ", or at ".join(f"{_some(names)}, only in the {side}" for side, names in _by_side(blame.suspects))
        return f"first differs at {suspects}, {and_or} at {place}{_what(blame.suspects)}"
    return f"differs at {place}, and before it {_alone(unpaired)}" if unpaired else f"first differs at {place}"


def _alone(rows: Sequence[ComparisonRow]) -> str:
    """Returns which of some rows are only in one of the dumps, and what they are: `a` is only in the reference."""
    sides = ((_some(names), "is" if len(names) == 1 else "are", side) for side, names in _by_side(rows))
    return " and ".join(f"{some} {verb} only in the {side}" for some, verb, side in sides) + _what(rows)


def _by_side(rows: Sequence[ComparisonRow]) -> list[tuple[str, list[str]]]:
    """Returns the names of rows by the side that has them, that of the first row first."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault("reference" if row.status == "missing" else "candidate", []).append(row.name)
    return list(names.items())


def _what(rows: Sequence[ComparisonRow]) -> str:
    """Returns a clause about what the first of some rows is of another."""
    # Both of two rows that belong together say so: one is enough.
    known = [
        f"{_quoted(row.name)} is {row.likely}"
        for row in rows
        if row.likely and (row.family, row.status) == (ACTIVATION, "missing")
    ]
    return "".join(f", where {each}" for each in known[:1])


def _only_gradients(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Returns the rows that differ, where all of them are gradients; else none."""
    differing = [row for row in rows if row.status == "different"]
    return differing if all(is_gradient(row.family) for row in differing) else []


def _in_brackets(row: ComparisonRow, makers: Sequence[str]) -> str:
    if "rel_l2" not in row.metrics:
        return f" ({row.why})"
    growth = as_float(row.metrics.get("growth", 0.0)) if row.inputs_paired else 0.0
    blame = f", {times(growth)} its inputs" if FLAGGED < growth < math.inf else ""
    blame = ", made here" if row.made_here else blame
    noise = f", {times(_noise(row))} noise" if "noise" in row.metrics else ""
    made = f", made in {_some(makers)}" if growth > FLAGGED and makers else ""
    blame = "" if made and row.made_here else blame
    rel_l2 = f"rel_l2 {brief(as_float(row.metrics['rel_l2']))}"
    apart = f"{row.why}; {rel_l2} elsewhere" if row.metrics["nonfinite_mismatch"] else rel_l2
    likely = f"; it {row.likely}" if row.family == AUX and row.likely else ""
    return f" ({apart}{blame}{noise}{made}{likely})"


def _rearranged(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a clause about parameters that have the same values in another layout under the same name.

    In a port that is meant so. Where a layer differs that uses one, the layout may be the fault.
    """
    found = [row for row in rows if row.family == PARAM and row.made_by and row.matched_by == "name"]
    if not found:
        return []
    names = [f"{_quoted(row.name)} ({row.made_by})" for row in found[:_SOME]]
    more = f" and {len(found) - _SOME} more" if len(found) > _SOME else ""
    verb = "has" if len(found) == 1 else "have"
    return [f"{counted(len(found), 'parameter')} {verb} another layout: {', '.join(names)}{more}"]


def _unproven(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a clause about inputs whose layout nothing but their own values shows, as of an image on its side."""
    found = [f"{_quoted(row.name)} ({row.made_by})" for row in rows if row.why == UNPROVEN]
    which = "which no parameter has, and may be the cause"
    return [f"the same input in another layout, {which}: {', '.join(found[:_SOME])}"] if found else []


def _reordered(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a clause about a batch whose examples are in another order."""
    return ["the batch has its examples in another order"] if any(r.made_by.endswith(REORDERED) for r in rows) else []


def _new_errors(rows: Sequence[ComparisonRow], divergence: Divergence) -> list[str]:
    """Returns a clause about tensors, other than the first, that differ by far more than all of their sources."""
    first = (divergence.forward, divergence.backward)
    made = [
        row.name
        for row in rows
        if row.family in (*FORWARD, *BACKWARD)
        and row.status == "different"
        and row not in first
        and row.inputs_paired
        and as_float(row.metrics.get("growth", 0.0)) > FLAGGED
    ]
    return [f"error is made anew at {_some(list(dict.fromkeys(made)))}"] if made else []


def _others(rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame) -> list[str]:
    """Returns clauses about families without a direction: possible causes, then consequences, then the rest."""
    directed = (*FORWARD, *BACKWARD)
    different = [
        row
        for row in rows
        if row.status == "different" and row.family not in directed and row is not divergence.forward
    ]
    follows = Counter(row.family for row in different if _follows(row, blame))
    others = Counter(row.family for row in different) - follows
    parts = [f"{_together(others, [each])} {_verb(others[each])}" for each in (PARAM, STATE, INPUT) if others[each]]
    where = "above it " if divergence.backward is not None else ""
    if caused := follows.total():
        parts.append(f"{_together(follows, _GRADIENTS)} {where}{'follows' if caused == 1 else 'follow'} from that")
    if own := sum(others[each] for each in _GRADIENTS):
        parts.append(f"{_together(others, _GRADIENTS)} {_verb(own)}{' in addition' if caused else ''}")
    known = {PARAM, STATE, INPUT, *_GRADIENTS}
    return [*parts, *(f"{_together(others, [each])} {_verb(others[each])}" for each in others if each not in known)]


def _together(counts: Counter[str], families: Sequence[str]) -> str:
    """Returns the counts of families in words: `2 parameter gradients and 1 input gradient`."""
    *some, last = (counted(counts[each], _NOUNS.get(each, f"{each} tensor")) for each in families if counts[each])
    return f"{', '.join(some)} and {last}" if some else last


def _follows(row: ComparisonRow, blame: Blame) -> bool:
    """Returns whether a gradient that differs is computed from the first divergence."""
    key = key_of(PARAM_GRAD if row.family == EXAMPLE_GRAD else row.family, row.name)
    return row.family in _GRADIENTS and (key in blame.backward or key in blame.forward)


def _advice(rows: Sequence[ComparisonRow]) -> str:
    """Returns a sentence that suggests calibration, where the differences are so small that it would settle them."""
    differing = [row for row in rows if row.counts and row.status != "same"]
    limits = [row.tolerance for row in differing if row.tolerance and row.needed is not None]
    near = all(row.tolerance and (row.needed or math.inf) <= _NEAR * row.tolerance for row in differing)
    if not near or len(limits) < len(differing) or any("noise" in row.metrics for row in rows):
        return ""
    return " A reference made with `gradscope calibrate` would tell whether that is noise."


def _one_sided(rows: Sequence[ComparisonRow]) -> list[str]:
    counts = Counter(row.status for row in rows if row.counts)
    sides = (("missing", "reference"), ("extra", "candidate"))
    return [f"{counted(counts[status], 'name')} only in the {side}" for status, side in sides if counts[status]]


def _verb(count: int) -> str:
    return "differs" if count == 1 else "differ"


def _quoted(name: str) -> str:
    return f"`{printable(name)}`"


def _some(names: Sequence[str]) -> str:
    """Returns the first names in quotes, and the number of the others."""
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return ", ".join(map(_quoted, names[:_SOME])) + more


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]
