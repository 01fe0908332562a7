"""Judging: from evidence and a tolerance to a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.comparison.judging.rows import Row, Status
from gradscope.comparison.judging.tolerance_rules import Tolerance
from gradscope.comparison.metrics.evidence import Evidence
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.manifest import Entry, Ledger
from gradscope.naming import key_of, split_key
from gradscope.naming.patterns import Pattern
from gradscope.naming.wording import brief


def judge(match: Match, entry: Entry, evidence: Evidence, tolerance: Tolerance | None) -> Row:
    """The row of a pair.

    Args:
        match: How the pair was found.
        entry: The reference's entry.
        evidence: What the pair shows.
        tolerance: What it is judged by; None where only equal bytes are the same.

    Returns:
        The row.
    """
    passes = evidence.bit_equal is True if tolerance is None else tolerance.admits(evidence)
    return Row(
        name=entry.name,
        family=entry.family,
        status="same" if passes else "different",
        index=entry.site.index,
        matched_by=match.matched_by,
        counterpart=_counterpart(match, entry),
        made_by=match.recipe.description(),
        metrics=evidence.metrics,
        tolerance=None if tolerance is None else tolerance.rel_l2,
        rule="" if tolerance is None or tolerance.rel_l2 is not None else tolerance.spelling,
        needed=evidence.needed,
        why=_untold(evidence, tolerance) or evidence.why or ("" if passes else _why(evidence, tolerance)),
        examples=evidence.examples,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A tensor that one dump alone has.

    Attributes:
        entry: Its entry.
        status: `missing` or `extra`.
        excuse: Why nothing is lost without it; "" where something may be.
    """

    entry: Entry
    status: Status
    excuse: str = ""


def one_sided(leftover: Leftover, allowed: Sequence[Pattern], other: Ledger) -> Row:
    """The row of a tensor that one dump alone has.

    Args:
        leftover: The tensor.
        allowed: Patterns of names and keys that may be on one side only.
        other: The account of the dump that lacks it, which may know why.

    Returns:
        The row.
    """
    entry, status = leftover.entry, leftover.status
    permitted = any(pattern.matches(entry.name, key_of(entry.family, entry.name)) for pattern in allowed)
    reasons = (leftover.excuse or _why_missing(entry, status, other), "allowed" if permitted else "")
    return Row(
        name=entry.name,
        family=entry.family,
        status=status,
        index=entry.site.index,
        why=", ".join(filter(None, reasons)),
        counts=not permitted and not leftover.excuse,
    )


def _counterpart(match: Match, entry: Entry) -> str:
    """What the candidate calls it; "" where it is called the same."""
    keys = [split_key(key) for key in match.recipe.keys]
    if keys == [(entry.family, entry.name)]:
        return ""
    return ", ".join(name if family == entry.family else key_of(family, name) for family, name in keys)


def _untold(evidence: Evidence, tolerance: Tolerance | None) -> str:
    """Why a bitwise comparison cannot tell; "" where it can, or is none."""
    told = tolerance is not None or evidence.bit_equal is not None or evidence.needed == math.inf
    return "" if told else "nothing tells whether its bytes are equal: there is neither a tensor nor a hash"


def _why(evidence: Evidence, tolerance: Tolerance | None) -> str:
    if tolerance is None:
        return "the bytes differ"
    if tolerance.rel_l2 is None:
        return f"it does not satisfy {tolerance.spelling}"
    return f"rel_l2 {brief(evidence.needed)} is over the tolerance {brief(tolerance.rel_l2)}"


def _why_missing(entry: Entry, status: Status, other: Ledger) -> str:
    """Why the other side has no such name, as far as it says; that it has none is the row's status."""
    side = "candidate" if status == "missing" else "reference"
    reasons = (line.reason for line in other.missing if (line.family, line.name) == (entry.family, entry.name))
    reason = next(reasons, None)
    return f"not in the {side} ({reason})" if reason else ""
