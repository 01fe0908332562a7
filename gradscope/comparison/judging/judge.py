"""`judge` returns the row of a pair, `one_sided` the row of a tensor that only one dump has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.judging.rounding.pair_floors import is_inherited, is_zero
from gradscope.comparison.judging.rows import ComparisonRow, Status
from gradscope.comparison.judging.tolerance_rules import Tolerance
from gradscope.comparison.metrics.evidence import PairEvidence
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry, Ledger
from gradscope.naming import key_of, split_key
from gradscope.naming.selecting.patterns import Pattern
from gradscope.naming.wording import brief, counted, percent

#: The remark on an input that agrees in a layout which nothing but its own values shows.
UNPROVEN: Final = "its own values alone show this layout: no parameter has it, and what is computed from it differs"

#: Why a tensor that only one dump has does not count, where the user says so.
ALLOWED: Final = "allowed"

#: Why running variances are the same that a library of JAX divides by the number of values.
OF_PYTORCH: Final = "PyTorch divides the variance by one less than the number of values"


def judge(
    match: Match,
    entry: Entry,
    evidence: PairEvidence,
    tolerance: Tolerance | None,
    floor: Floor | None = None,
    *,
    source: str | None = None,
    made_here: bool = False,
    kinked: str = "",
    accumulated: bool = False,
) -> ComparisonRow:
    """Returns the row of a pair.

    Args:
        match: The pair, and the pass that found it.
        entry: The reference's entry.
        evidence: How the tensors differ.
        tolerance: The tolerance that is applied; None where only equal bytes count as the same.
        floor: How far rounding can move the tensor; None where that is not known.
        source: The value's line in the code of either program; None where that is not known.
        made_here: As for `ComparisonRow`.
        kinked: Why the tolerance is wider than that of other gradients; "" where it is not.
        accumulated: Whether it is wider, as rounding may add up, and the error is over the default one.
    """
    passes = evidence.bit_equal is True if tolerance is None else tolerance.admits(evidence)
    reach = None if passes or tolerance is None or tolerance.rel_l2 is None else floor
    rounding = "" if reach is None else _zero(evidence, reach)
    inherited = "" if reach is None or rounding else _inherited(evidence, reach)
    passes = passes or bool(rounding or inherited)
    return ComparisonRow(
        name=entry.name,
        family=entry.family,
        status="same" if passes else "different",
        index=entry.site.index,
        matched_by=match.matched_by,
        counterpart=_counterpart(match, entry),
        made_by=match.recipe.description(),
        metrics=evidence.with_metrics(floor=None if floor is None else floor.l2).metrics,
        tolerance=None if tolerance is None else tolerance.rel_l2,
        rule="" if tolerance is None or tolerance.rel_l2 is not None else tolerance.spelling,
        needed=0.0 if rounding else evidence.needed,
        why=rounding
        or inherited
        or _undecidable(evidence, tolerance)
        or evidence.why
        or (UNPROVEN if match.unproven and passes else "")
        or (kinked if passes else "")
        or ("" if passes else _why(evidence, tolerance)),
        examples=evidence.examples,
        source=source,
        made_here=made_here,
        kinked=bool(kinked) and passes,
        accumulated=accumulated and passes and not kinked and reach is None,
    )


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Unmatched is a tensor that only one dump has.

    Attributes:
        entry: Its entry.
        status: `missing` or `extra`.
        why_redundant: Why its values are compared elsewhere, or are none; "" where they are not compared.
    """

    entry: Entry
    status: Status
    why_redundant: str = ""


def one_sided(unmatched: Unmatched, allowed: Sequence[Pattern], other: Ledger) -> ComparisonRow:
    """Returns the row of a tensor that only one dump has.

    Args:
        unmatched: The tensor.
        allowed: Patterns of names and keys that may be in one dump only.
        other: The ledger of the dump that lacks it, which may have the reason.
    """
    entry, status = unmatched.entry, unmatched.status
    permitted = any(pattern.matches(entry.name, key_of(entry.family, entry.name)) for pattern in allowed)
    reasons = (unmatched.why_redundant or _why_missing(entry, status, other), ALLOWED if permitted else "")
    return ComparisonRow(
        name=entry.name,
        family=entry.family,
        status=status,
        index=entry.site.index,
        source=entry.site.source,
        why=", ".join(filter(None, reasons)),
        counts=not permitted and not unmatched.why_redundant,
    )


def _zero(evidence: PairEvidence, floor: Floor) -> str:
    """Returns that a tensor is rounding only; "" where it is more."""
    if not is_zero(evidence, floor):
        return ""
    flipped = as_float(evidence.metrics.get("flipped", 0.0))
    of = brief(evidence.distance or 0.0) if evidence.most is None else f"of at most {brief(evidence.most)}"
    found = f"the difference {of} is below {brief(floor.l2)}, the floor of sums of {counted(floor.terms, 'term')}"
    signs = f"; {percent(flipped)} of its signs flip, which an optimizer that acts on signs would follow"
    return f"zero but for rounding: {found}{signs if flipped else ''}"


def _inherited(evidence: PairEvidence, floor: Floor) -> str:
    """Returns that the terms of a sum, which agree, make up for its difference; "" where they do not."""
    if not is_inherited(evidence, floor):
        return ""
    terms = f"what the differences of its {counted(floor.terms, 'term')}, which agree, may add up to"
    return f"the difference {brief(evidence.distance or 0.0)} is below {brief(floor.inherited)}, {terms}"


def _counterpart(match: Match, entry: Entry) -> str:
    """Returns the candidate's names of a tensor; "" where it has the reference's name."""
    keys = [split_key(key) for key in match.recipe.keys]
    if keys == [(entry.family, entry.name)]:
        return ""
    return ", ".join(name if family == entry.family else key_of(family, name) for family, name in keys)


def _undecidable(evidence: PairEvidence, tolerance: Tolerance | None) -> str:
    """Returns why a bitwise comparison is undecided; "" where it is decided, or is not bitwise."""
    decided = tolerance is not None or evidence.bit_equal is not None or evidence.needed == math.inf
    return "" if decided else "it is unknown whether its bytes are equal: there is neither a tensor nor a hash"


def _why(evidence: PairEvidence, tolerance: Tolerance | None) -> str:
    if tolerance is None:
        return "the bytes differ"
    if tolerance.rel_l2 is None:
        return f"it does not satisfy {tolerance.spelling}"
    return f"rel_l2 {brief(evidence.needed)} is over the tolerance {brief(tolerance.rel_l2)}"


def _why_missing(entry: Entry, status: Status, other: Ledger) -> str:
    """Returns the reason for a missing name from the other dump's ledger; "" where it has none."""
    side = "candidate" if status == "missing" else "reference"
    reasons = (line.reason for line in other.missing if (line.family, line.name) == (entry.family, entry.name))
    reason = next(reasons, None)
    return f"not in the {side} ({reason})" if reason else ""
