"""`growths` relates the error of each tensor to the errors that it could inherit from its sources.

`creeping` tells of an error that no layer makes.

The growth of a value or gradient is its `rel_l2` divided by the largest `rel_l2` of its sources in the graph of layers,
or by a floor where that is larger, because ratios of rounding errors carry no information.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.default_tolerances import READ_FAMILIES, default_tolerance
from gradscope.comparison.judging.limits.measured_pairs import MeasuredPair
from gradscope.comparison.judging.rounding.pair_floors import is_within
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import NearestKeys, Sources
from gradscope.naming import ACTIVATION, PARAM, is_gradient, split_key
from gradscope.naming.wording import counted, times

#: Growth above which an error counts as made by the layer itself.
FLAGGED: Final = 10.0

#: The floor below which an inherited error counts as rounding, as a fraction of the value's default tolerance.
_FLOOR: Final = 0.01

#: How far what both programs are given may be apart for an error to be one of rounding, how many layers it grows in,
#: and by how much in each: those of a RegNet and of a ResNet made up to 2.6 times of it, those of a ResNet in bfloat16
#: 2.7 times, and small faults 100 times.
_ROUNDED: Final = 1e-6
_DEEP: Final = 10
_CREEPING: Final = 3.0

#: How far it may be apart where one program casts it to 16 bits: the largest relative error of an element, half of
#: bfloat16's epsilon, and the share of the default tolerance that all of them make, which is a twelfth.
_CAST_ELEMENT: Final = 2.0**-8
_CAST: Final = 0.1
_OF_16_BITS: Final = default_tolerance(PARAM, "float16", "float16")

#: The share of the default tolerance of 16 bits that a single layer makes by rounding: two epsilons.
_SMALL: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Error stores the `rel_l2` of one value, and the default tolerance of its dtype and family."""

    rel_l2: float
    tolerance: float


def errors_of(pairs: Sequence[MeasuredPair]) -> dict[str, Error]:
    """Returns the errors of pairs by the keys of the reference's owners.

    Where the candidate computes something of what a module's last layer returns, and the reference does not, two of its
    tensors are one there: what is computed from that inherits the error of the last of them.

    Args:
        pairs: The pairs.
    """
    errors: dict[str, Error] = {}
    for pair in pairs:
        found = pair.evidence
        # The layer's own name is that of the first value, and of the last gradient.
        last = (pair.match.ref == pair.owner) is is_gradient(split_key(pair.owner)[0])
        if pair.owner in errors and not last:
            continue
        # What is zero but for rounding has a relative error that means nothing.
        if pair.rounding is not None and is_within(found, pair.rounding):
            errors[pair.owner] = Error(rel_l2=0.0, tolerance=pair.tolerance)
        # A pair that cannot be compared, at some positions or at all, counts as an infinite error, so that later layers
        # are seen to inherit it.
        elif "rel_l2" in found.metrics or math.isinf(found.needed):
            rel_l2 = math.inf if math.isinf(found.needed) else as_float(found.metrics["rel_l2"])
            errors[pair.owner] = Error(rel_l2=rel_l2, tolerance=pair.tolerance)
    return errors


def growths(sources: Sources, errors: Mapping[str, Error]) -> dict[str, float]:
    """Returns the growth of every value and gradient that could inherit an error, by key.

    Args:
        sources: What tensors are computed from.
        errors: Known errors by the keys of owners, by which layers name values.
    """
    nearest = NearestKeys(sources, errors)
    found: dict[str, float] = {}
    for key, error in errors.items():
        inherited = [errors[source].rel_l2 for source in nearest.behind(key)]
        floor = error.tolerance * _FLOOR
        if inherited and floor > 0:
            found[key] = _quotient(error.rel_l2, max(floor, *inherited))
    return found


def is_made_here(growth: float | None, error: Error, epsilon: float) -> bool:
    """Returns whether an error is made by the layer itself, from inputs that are exact but for rounding.

    Args:
        growth: How many times its inputs' error it is; None where that is not known.
        error: The error.
        epsilon: The machine epsilon of the type that the value was computed in: an error below it is rounding itself.
    """
    if growth is None or growth <= FLAGGED or error.rel_l2 <= epsilon:
        return False
    return error.rel_l2 <= growth * error.tolerance * _FLOOR * (1 + 1e-9)


def makes_error(row: ComparisonRow) -> bool:
    """Returns whether the error of a row is far larger than all that it could inherit."""
    return row.made_here or as_float(row.metrics.get("growth", 0.0)) > FLAGGED


def _quotient(own: float, inherited: float) -> float:
    # Two infinite errors: the error is inherited unchanged.
    return 1.0 if own == inherited else own / inherited


def creeping(rows: Sequence[ComparisonRow], first: ComparisonRow | None) -> list[str]:
    """Returns a clause about an error that no layer makes: each makes a few times what it reads of that of rounding.

    So it is in deep networks that are not trained, whose norms over few values make more of every error.

    Args:
        rows: The rows of a comparison.
        first: The one that first differs in the forward pass.
    """
    if first is None or first.family != ACTIVATION:
        return []
    given = (row for row in rows if row.family in READ_FAMILIES and row.compared)
    values = [row for row in rows if row.family == ACTIVATION and row.compared]
    before = [row for row in values if row.index <= first.index]
    # Values that are no results of layers have no growth, as what is only returned.
    related = [row for row in values if row.metrics.get("growth") is not None]
    # What the first layers in 16 bits make of exact values is their rounding, and nothing that grows.
    tolerance = min((row.tolerance or 0.0 for row in before), default=0.0)
    small = _SMALL * tolerance if tolerance >= _OF_16_BITS else 0.0
    growth = [
        as_float(row.metrics["growth"]) for row in related if as_float(row.metrics.get("rel_l2", math.inf)) > small
    ]
    is_deep = sum(row.index <= first.index for row in related) >= _DEEP
    if not is_deep or not all(map(_is_rounded, given)) or not max(growth, default=0.0) <= _CREEPING:
        return []
    # What has no growth may make its error itself: it is no more than others make of what is over no tolerance yet.
    reached = max((as_float(row.metrics.get("rel_l2", 0.0)) for row in before if row is not first), default=0.0)
    if not as_float(first.metrics.get("rel_l2", math.inf)) <= _CREEPING * reached:
        return []
    most = f"of the error that it reads, each of {counted(len(growth), 'layer')} makes at most {times(max(growth))}"
    return [f"{most}, as where rounding grows: `gradscope calibrate` tells whether that is noise"]


def _is_rounded(row: ComparisonRow) -> bool:
    """Returns whether both programs are given the same tensor, which one of them may cast to 16 bits."""
    needed, tolerance = row.needed or 0.0, row.tolerance or 0.0
    largest = as_float(row.metrics.get("max_rel", math.inf))
    is_cast = tolerance >= _OF_16_BITS and needed <= _CAST * tolerance and largest <= _CAST_ELEMENT
    return row.status == "same" and (needed <= _ROUNDED or is_cast)
