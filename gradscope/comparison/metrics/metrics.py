"""`Metrics` stores all metrics of one pair of tensors, and returns them by the names of their columns.

Law: the metrics of two ranges of elements add up to the metrics of both ranges together. Counts, maxima and the
position of the worst element add up exactly, norms and angles up to rounding. The metrics of an empty range have the
columns of two equal tensors: equal tensors have the same metrics, whatever their elements are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gradscope.comparison.metrics.elementwise import ElementwiseErrors, Peak, Scalar
from gradscope.comparison.metrics.rel_l2_and_cosine import Alignment
from gradscope.dump.record import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics stores how the elements of a pair differ.

    Attributes:
        kind: The kind of the elements, see `precision.kind_of`.
        size: Number of positions.
        nonfinite_mismatch: Number of positions where one element is not finite and the other is finite, or another
            non-finite value. Two NaNs agree, and so do two infinities of one sign.
        alignment: Norms and angle over the positions where both elements are finite.
        elementwise: Elementwise errors over the same positions.
        bit_equal: Whether the bytes are the same.
    """

    kind: str
    size: int = 0
    nonfinite_mismatch: int = 0
    alignment: Alignment = field(default_factory=Alignment)
    elementwise: ElementwiseErrors = field(default_factory=ElementwiseErrors)
    bit_equal: bool = True

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            kind=self.kind,
            size=self.size + other.size,
            nonfinite_mismatch=self.nonfinite_mismatch + other.nonfinite_mismatch,
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
        return {
            "rel_l2": self.alignment.rel_l2,
            "1-cos": self.alignment.one_minus_cosine,
            "norm_ratio": self.alignment.norm_ratio,
            **_peak_columns(self.elementwise.peak, shape),
            "mismatch": self._share(self.elementwise.mismatched),
            **self._relative_columns(),
            **self._float_columns(),
            "sqnr_db": self.alignment.sqnr_db,
            "nonfinite_mismatch": self.nonfinite_mismatch,
            "bit_equal": self.bit_equal,
        }

    def _relative_columns(self) -> dict[str, Json]:
        return {"max_rel": self.elementwise.relative.max_rel} if self.kind in ("float", "complex") else {}

    def _float_columns(self) -> dict[str, Json]:
        if self.kind != "float":
            return {}
        relative, ulps = self.elementwise.relative, self.elementwise.ulps
        return {
            "ulp_max": ulps.largest,
            "ulp_share": self._share(ulps.above),
            "sign_flip": relative.flipped / relative.large if relative.large else 0.0,
        }

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
