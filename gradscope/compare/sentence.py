"""The verdict as a sentence: whether two runs are the same, where they part in each direction, what else differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gradscope.compare.divergence import BACKWARD, FORWARD, Divergence
from gradscope.compare.growth import FLAGGED
from gradscope.compare.rows import Row
from gradscope.compare.wording import brief, counted
from gradscope.dump.jsontext import as_float
from gradscope.naming import INPUT, INPUT_GRAD, PARAM, PARAM_GRAD, STATE, printable

#: What a tensor of a family without a direction is called; another family is called by its name.
_NOUNS: Final = {
    INPUT: "input",
    INPUT_GRAD: "input gradient",
    PARAM: "parameter",
    PARAM_GRAD: "parameter gradient",
    STATE: "state tensor",
}


def different_sentence(rows: Sequence[Row], divergence: Divergence) -> str:
    """The sentence for two runs that differ."""
    rest = [*_others(rows), *_one_sided(rows)]
    directions = _directions(rows, divergence)
    if not directions:
        return _capitalised("; ".join(rest)) + "."
    return ". ".join(directions) + "".join(f"; {each}" for each in rest) + "."


def same_sentence(rows: Sequence[Row]) -> str:
    """The sentence for two runs that are the same."""
    compared = [row for row in rows if row.compared]
    equal = sum(row.metrics.get("bit_equal") is True for row in compared)
    tensors = counted(len(compared), "tensor")
    if equal == len(compared):
        return f"Same bit for bit: {tensors}."
    worst = max(compared, key=lambda row: row.needed or 0.0)
    needed = worst.needed or 0.0
    return f"Same within tolerance: {tensors}, largest rel_l2 {brief(needed)} at {_quoted(worst)}, bit-equal {equal}."


def nothing_sentence(rows: Sequence[Row]) -> str:
    """The sentence for two dumps of which nothing was compared."""
    if any(row.matched_by for row in rows):
        return "Nothing compared: no name in common has a tensor."
    missing, extra = (sum(row.status == status for row in rows) for status in ("missing", "extra"))
    if not missing and not extra:
        return "Nothing compared: there is no name to compare."
    return f"Nothing compared: the dumps have no name in common (reference {missing}, candidate {extra})."


def _directions(rows: Sequence[Row], divergence: Divergence) -> list[str]:
    seen = {row.family for row in rows if row.compared}
    forward = _direction("Forward", divergence.forward, seen.intersection(FORWARD))
    backward = _direction("Backward", divergence.backward, seen.intersection(BACKWARD))
    if forward and backward and divergence.backward_only:
        return [f"Backward only: {_uncapitalised(forward)}, {_uncapitalised(backward)}"]
    return [each for each in (forward, backward) if each]


def _direction(name: str, first: Row | None, seen: set[str]) -> str:
    if first is not None:
        return f"{name} first differs at {_quoted(first)}{_in_brackets(first)}"
    return f"{name} agrees" if seen else ""


def _in_brackets(row: Row) -> str:
    if "rel_l2" not in row.metrics:
        return f" ({row.why})"
    growth = as_float(row.metrics.get("growth", 0.0))
    blame = f", {growth:.0f}x its inputs" if FLAGGED < growth < math.inf else ""
    conflict = f"; {row.why}" if row.metrics["nonfinite_mismatch"] else ""
    return f" (rel_l2 {brief(as_float(row.metrics['rel_l2']))}{blame}{conflict})"


def _others(rows: Sequence[Row]) -> list[str]:
    """The families that have no direction, culprits before consequences, each with how many of it differ."""
    directed = (*FORWARD, *BACKWARD)
    counts = Counter(row.family for row in rows if row.status == "different" and row.family not in directed)
    order = [PARAM, STATE, INPUT, PARAM_GRAD, INPUT_GRAD]
    families = [*(each for each in order if each in counts), *(each for each in counts if each not in order)]
    return [f"{counted(counts[each], _NOUNS.get(each, f'{each} tensor'))} {_verb(counts[each])}" for each in families]


def _one_sided(rows: Sequence[Row]) -> list[str]:
    counts = Counter(row.status for row in rows if row.counts)
    sides = (("missing", "reference"), ("extra", "candidate"))
    return [f"{counted(counts[status], 'name')} only in the {side}" for status, side in sides if counts[status]]


def _verb(count: int) -> str:
    return "differs" if count == 1 else "differ"


def _quoted(row: Row) -> str:
    return f"`{printable(row.name)}`"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]
