"""`Metrics` stores all metrics of one pair of tensors, and returns them by the names of their columns.

Law: the metrics of two ranges of elements add up to the metrics of both ranges together. Counts, maxima and the
position of the worst element add up exactly, norms and angles up to rounding. The metrics of an empty range have the
columns of two equal tensors: equal tensors have the same metrics, whatever their elements are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from gradscope.comparison.metrics.elementwise import ElementwiseErrors, Peak, Scalar
from gradscope.comparison.metrics.rel_l2_and_cosine import Alignment
from gradscope.dump.record import Json

#: What the values of a metric are. An `index` and an `element` belong to the worst element and have no order.
MetricKind: TypeAlias = Literal["number", "share", "count", "flag", "index", "element"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """MetricSpec defines one metric of a comparison.

    Attributes:
        name: Its name in JSON, in rows, in the heading of tables and in expressions.
        sentence: What it is, with its formula: `a` is the reference, `b` the candidate, `d = b - a`; in Markdown,
            without a full stop.
        kind: What its values are.
        unit: The unit of its values; "" where they have none.
        dtypes: The classes of dtypes that have it, of those in `precision`; empty for all.
    """

    name: str
    sentence: str
    kind: MetricKind = "number"
    unit: str = ""
    dtypes: tuple[str, ...] = ()


#: The unit of metrics that are measured in the unit of the elements.
_ELEMENTS_OWN: Final = "that of the elements"

#: Every metric that a row may have, in the order of JSON. Norms are over positions where both sides are finite, and
#: which no mask fills.
METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        name="rel_l2",
        sentence="relative error, `l2(d) / l2(a)`, which verdicts and default tolerances are based on; "
        "0/0 is 0 and x/0 is inf",
    ),
    MetricSpec(
        name="1-cos",
        sentence="`1 - <a, b> / (l2(a) l2(b))`, computed without cancellation for nearly parallel vectors",
    ),
    MetricSpec(name="norm_ratio", sentence="ratio of the norms, `l2(b) / l2(a)`"),
    MetricSpec(name="max_abs", sentence="largest difference of two elements, `max(|d|)`", unit=_ELEMENTS_OWN),
    MetricSpec(name="max_abs_index", sentence="index of the element that differs most", kind="index"),
    MetricSpec(
        name="max_abs_ref",
        sentence="that element in the reference; [real, imaginary] where it is complex",
        kind="element",
        unit=_ELEMENTS_OWN,
    ),
    MetricSpec(
        name="max_abs_cand",
        sentence="that element in the candidate; [real, imaginary] where it is complex",
        kind="element",
        unit=_ELEMENTS_OWN,
    ),
    MetricSpec(
        name="mismatch",
        sentence="share with `|d| > atol + rtol |a|`, the rule of `numpy.allclose`",
        kind="share",
        unit="of the elements",
    ),
    MetricSpec(
        name="max_rel",
        sentence="largest relative difference, `max(|d| / |a|)` over the elements with `|a| >= small`",
        dtypes=("float", "complex"),
    ),
    MetricSpec(
        name="ulp_max",
        sentence="largest distance of two elements, in units in the last place of the coarser dtype of the pair",
        kind="count",
        unit="ulp",
        dtypes=("float",),
    ),
    MetricSpec(
        name="ulp_share",
        sentence="share of the elements that are further apart than the allowance of the coarser dtype",
        kind="share",
        unit="of the elements",
        dtypes=("float",),
    ),
    MetricSpec(
        name="sign_flip",
        sentence="share of the elements with `|a| >= small` that have the opposite sign on the other side",
        kind="share",
        unit="of the elements with `|a| >= small`",
        dtypes=("float",),
    ),
    MetricSpec(name="sqnr_db", sentence="signal to quantization noise, `20 log10(l2(a) / l2(d))`", unit="dB"),
    MetricSpec(
        name="nonfinite_mismatch",
        sentence="number of positions where one side is finite and the other is not, where the two are not finite in "
        "different ways, or which a mask fills on one side only",
        kind="count",
        unit="elements",
    ),
    MetricSpec(
        name="masked",
        sentence="number of positions that a mask fills on both sides, with a number that all others are at least "
        "1,000 times smaller than; the other metrics leave them out",
        kind="count",
        unit="elements",
        dtypes=("float",),
    ),
    MetricSpec(name="bit_equal", sentence="whether every byte is the same", kind="flag"),
    MetricSpec(
        name="growth",
        sentence="error made in the layer relative to the error that it inherits, `rel_l2 / max(rel_l2 of the layer's "
        "inputs, floor)`; above 10 the error counts as made by the layer itself",
    ),
    MetricSpec(
        name="noise",
        sentence="error in noise floors of a calibrated reference, `rel_l2 / floor`; up to 10 counts as noise, "
        "while that is a rel_l2 of at most 0.5, and else up to 2",
    ),
    MetricSpec(
        name="floor",
        sentence="norm of a difference that rounding explains, from the scale of the tensors that this one is computed "
        "from and the number of terms summed; up to it, `l2(d)` counts as rounding",
        unit=_ELEMENTS_OWN,
    ),
    MetricSpec(
        name="flipped",
        sentence="share of the elements of a parameter's gradient that have the opposite sign, however small they are: "
        "an optimizer that acts on signs moves them the other way; where `rel_l2` is 1e-3 or more",
        kind="share",
        unit="of the elements that are not zero",
        dtypes=("float",),
    ),
    MetricSpec(
        name="spread",
        sentence="error of per-example gradients as a share of the batch's own spread",
        unit="of the spread of the batch",
    ),
    MetricSpec(
        name="random",
        sentence="the part of `spread` that differs from example to example",
        unit="of the spread of the batch",
    ),
    MetricSpec(
        name="bias",
        sentence="the part of `spread` that is the same in every example",
        unit="of the spread of the batch",
    ),
)


_DTYPES: Final = {spec.name: spec.dtypes for spec in METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics stores how the elements of a pair differ.

    Attributes:
        kind: The class of the elements, see `precision.dtype_class`.
        size: Number of positions.
        nonfinite_mismatch: Number of positions where one element is not finite and the other is finite, or another
            non-finite value, or which a mask fills on one side only. Two NaNs agree, and so do two infinities of one
            sign.
        masked: Number of positions that a mask fills on both sides.
        alignment: Norms and angle over the other positions where both elements are finite.
        elementwise: Elementwise errors over the same positions.
        bit_equal: Whether the bytes are the same.
    """

    kind: str
    size: int = 0
    nonfinite_mismatch: int = 0
    masked: int = 0
    alignment: Alignment = field(default_factory=Alignment)
    elementwise: ElementwiseErrors = field(default_factory=ElementwiseErrors)
    bit_equal: bool = True

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            kind=self.kind,
            size=self.size + other.size,
            nonfinite_mismatch=self.nonfinite_mismatch + other.nonfinite_mismatch,
            masked=self.masked + other.masked,
            alignment=self.alignment + other.alignment,
            elementwise=self.elementwise + other.elementwise.shifted(self.size),
            bit_equal=self.bit_equal and other.bit_equal,
        )

    @property
    def needed(self) -> float:
        """The smallest tolerance on `rel_l2` that would pass; inf where none would."""
        return math.inf if self.nonfinite_mismatch else self.alignment.rel_l2

    def columns(self, shape: tuple[int, ...]) -> dict[str, Json]:
        """Returns every metric that applies, by the name of its column.

        Args:
            shape: The shape of the tensors, for the index of the worst element.

        Returns:
            Numbers, and for the worst element `max_abs_index` and both values; complex values as `[real, imaginary]`.
        """
        # Without a position that is finite in both tensors, the other metrics would be those of two equal tensors.
        if self.nonfinite_mismatch and not self.elementwise.count:
            return {"nonfinite_mismatch": self.nonfinite_mismatch, "bit_equal": self.bit_equal}
        relative, ulps = self.elementwise.relative, self.elementwise.ulps
        found: dict[str, Json] = {
            "rel_l2": self.alignment.rel_l2,
            "1-cos": self.alignment.one_minus_cosine,
            "norm_ratio": self.alignment.norm_ratio,
            **_peak_columns(self.elementwise.peak, shape),
            "mismatch": self._share(self.elementwise.mismatched),
            "max_rel": relative.max_rel,
            "ulp_max": ulps.largest,
            "ulp_share": self._share(ulps.above),
            "sign_flip": relative.flipped / relative.large if relative.large else 0.0,
            "sqnr_db": self.alignment.sqnr_db,
            "nonfinite_mismatch": self.nonfinite_mismatch,
            **({"masked": self.masked} if self.masked else {}),
            "bit_equal": self.bit_equal,
        }
        return {name: value for name, value in found.items() if not _DTYPES[name] or self.kind in _DTYPES[name]}

    def _share(self, count: int) -> float:
        return count / self.elementwise.count if self.elementwise.count else 0.0


def _peak_columns(peak: Peak | None, shape: tuple[int, ...]) -> dict[str, Json]:
    if peak is None:
        return {"max_abs": 0.0}
    return {
        "max_abs": peak.magnitude,
        "max_abs_index": [int(position) for position in np.unravel_index(peak.index, shape)],
        "max_abs_ref": _number(peak.ref),
        "max_abs_cand": _number(peak.cand),
    }


def _number(value: Scalar) -> Json:
    return [value.real, value.imag] if isinstance(value, complex) else value
