"""The first row that differs at a step is told in words: its numbers, its norms, or a bound of `rel_l2`."""

from __future__ import annotations

import math
from typing import Final

from gradscope.comparison.diagnosis.runs.run_stages import STEP, RunRow
from gradscope.naming import printable

#: A bound may be rounded otherwise than the quotient of the norms that it follows from.
_ROUNDING: Final = 1e-9


def difference_of(row: RunRow) -> str:
    """Returns in which way a row differs, as a clause that begins with its name.

    Args:
        row: The row.
    """
    other_name = row.counterpart if row.counterpart not in ("", row.name) else ""
    name = f"`{printable(row.key or row.name)}`{f' (`{printable(other_name)}` in the candidate)' if other_name else ''}"
    if row.status in ("missing", "extra"):
        return f"{name} is only in the {'reference' if row.status == 'missing' else 'candidate'}"
    if row.family == STEP:
        return f"{name} is {_number(row.cand)} in the candidate and {_number(row.ref)} in the reference{_within(row)}"
    for side, norm, other in (("reference", row.ref, row.cand), ("candidate", row.cand, row.ref)):
        if norm == 0 and other:
            return f"{name} is zero in the {side}, and in the other it has an l2 of {other:.4g}"
    if row.bound is not None and math.isinf(row.bound):
        numbers = row.ref is not None or row.cand is not None
        return f"{name} has {'another number of NaN or infinite elements' if numbers else 'other values'}"
    return f"{name}, {_multiple(row)}rel_l2 at least {row.bound or 0.0:.3g}{_tolerance(row)}"


def _multiple(row: RunRow) -> str:
    """Returns how many times its norm is, where that is at least doubled and all that the bound follows from."""
    ratio = row.cand / row.ref if row.cand and row.ref else 1.0
    if ratio < 2 or not math.isclose(ratio - 1, row.bound or 0.0, rel_tol=_ROUNDING):
        return ""
    return f"whose l2 is {ratio:.4g} times that of the reference: "


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.6g}"


def _within(row: RunRow) -> str:
    return "" if row.tolerance is None else f" (tolerance {row.tolerance})"


def _tolerance(row: RunRow) -> str:
    return "" if row.tolerance is None else f", tolerance {row.tolerance}"
