"""The sentence of a verdict says that two runs are the same, and by what they were judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gradscope.comparison.default_tolerances import FULL, READ_FAMILIES, TENSORFLOAT32
from gradscope.comparison.diagnosis.clauses import incomparable, kept_alone, quoted, reordered, some_of
from gradscope.comparison.diagnosis.divergence import BACKWARD
from gradscope.comparison.diagnosis.likely.losses.loss_difference import LossDifference
from gradscope.comparison.judging.limits.noise import WITHIN
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, is_gradient
from gradscope.naming.wording import brief, counted, times


def same_sentence(rows: Sequence[ComparisonRow], losses: LossDifference | None = None, products: str = FULL) -> str:
    """Returns the sentence for two runs that are the same.

    Args:
        rows: All rows.
        losses: How the losses differ all the same; None where they agree, or are not known.
        products: The dtype of `Comparison.products`.
    """
    compared = [row for row in rows if row.compared]
    equal = sum(row.metrics.get("bit_equal") is True for row in compared)
    tensors = counted(len(compared), "tensor")
    undecided = sum("bit_equal" not in row.metrics for row in compared)
    bits = f"bit-equal {equal}" + (f", and {undecided} judged by statistics alone" if undecided else "")
    order = "".join(f"; {each}" for each in _told(rows)) + ("" if losses is None else f"; but {losses.sentence}")
    if equal == len(compared):
        return f"Same bit for bit: {tensors}{order}."
    zeros = f", {rounded} zero but for rounding" if (rounded := sum(row.is_rounding for row in compared)) else ""
    unequal = [row for row in compared if row.metrics.get("bit_equal") is not True and not row.is_rounding]
    worst = max((row for row in unequal if "noise" in row.metrics), key=_noise, default=None)
    if worst is not None and _noise(worst) <= WITHIN:
        most = f"at most {times(_noise(worst))} noise at {quoted(worst.name)}"
        without = [row for row in unequal if "noise" not in row.metrics and row.family not in READ_FAMILIES]
        if not without:
            return f"Same within noise: {tensors}, {most}, {bits}{zeros}{order}."
        needed = max(row.needed or 0.0 for row in without)
        others = f"{len(without)} without a noise floor within tolerance, largest rel_l2 {brief(needed)}"
        return f"Same within noise, as far as that is known: {tensors}, {most}, and {others}, {bits}{zeros}{order}."
    worst = max(compared, key=lambda row: row.needed or 0.0)
    needed = worst.needed or 0.0
    how = "as far as statistics tell" if undecided else "within tolerance"
    most = f"largest rel_l2 {brief(needed)} at {quoted(worst.name)}"
    wider = _at_kinks(rows) + _accumulated(rows)
    return f"Same {how}: {tensors}, {most}, {bits}{zeros}{wider}{order}.{of_products(products)}"


def agreement(rows: Sequence[ComparisonRow], families: Collection[str]) -> str:
    """Returns that the values of some families agree, where none differs: they do, or are within noise.

    Args:
        rows: All rows.
        families: The families.
    """
    measured = [row for row in rows if row.family in families and row.status == "same" and "noise" in row.metrics]
    worst = max(measured, key=_noise, default=None)
    if worst is None or not 1 < _noise(worst) <= WITHIN:
        return "agrees"
    return f"is within noise (at most {times(_noise(worst))} at {quoted(worst.name)})"


def _told(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns the clauses about what is no difference, and that two runs do not have in common."""
    return [*reordered(rows), *kept_alone(rows), *incomparable(rows), *_other_forms(rows), *_unshown(rows)]


def _other_forms(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about values that are the same, and another form of a function in the candidate."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "same" and row.likely:
            found.setdefault(row.likely, []).append(row.name)
    return [f"{some_of(names)} {what}" for what, names in found.items()]


def _unshown(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about values that are in another order, of which nothing shows whether that is right."""
    missing = (row for row in rows if row.family == ACTIVATION and row.status == "missing" and row.likely)
    return [f"{quoted(row.name)} {row.likely}" for row in missing]


def of_products(products: str) -> str:
    """Returns a sentence about float32 products of fewer digits, where a difference needs the tolerance of these."""
    if products == FULL:
        return ""
    digits = {TENSORFLOAT32: "TensorFloat-32"}.get(products, products)
    how = "with `--matmul-precision highest`, smaller differences show"
    return f" Products of float32 have the digits of {digits}: {how}."


def _at_kinks(rows: Sequence[ComparisonRow]) -> str:
    """Returns a clause about gradients that are the same because rounding decides them at kinks."""
    kinked = [row for row in rows if row.kinked]
    if not kinked:
        return ""
    first = max(kinked, key=lambda row: (row.family in BACKWARD, row.index))
    why = f"since rounding decides on which side of a kink values are, first at {quoted(first.name)}"
    return f"; {counted(len(kinked), 'gradient')} over the default tolerance, {why}"


def _accumulated(rows: Sequence[ComparisonRow]) -> str:
    """Returns a clause about tensors that are the same because rounding may add up to their errors."""
    deep = [row for row in rows if row.accumulated]
    if not deep:
        return ""
    first = min(deep, key=lambda row: (is_gradient(row.family), row.index))
    why = f"as rounding may add up, first at {quoted(first.name)}: smaller faults show beside the noise of"
    return f"; {len(deep)} over the default tolerance, {why} a reference made with `gradscope calibrate`"


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
