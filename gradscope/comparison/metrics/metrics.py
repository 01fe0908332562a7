"""The metrics of one pair of tensors, by the names of their columns.

Law: the metrics of two stretches of a pair add up to the metrics of the whole, whatever the stretches: counts, maxima
and the position of the worst element exactly, norms and angles to rounding. The metrics of no stretch at all have the
columns of two equal tensors, which are the same whatever is in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gradscope.comparison.metrics.alignment import Alignment
from gradscope.comparison.metrics.deviation import Deviation, Peak, Scalar
from gradscope.dump.record import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What the elements of a pair say about each other.

    Attributes:
        kind: What sort of numbers they are, as `precision.kind_of` has it.
        size: Number of positions.
        nonfinite_mismatch: Positions where one side is not finite and the other is, or is so in another way. Two NaNs
            agree, and so do two infinities of one sign.
        alignment: Lengths and directions, over positions where both sides are finite.
        deviation: Elements, over the same positions.
        bit_equal: Whether the bytes are the same.
    """

    kind: str
    size: int = 0
    nonfinite_mismatch: int = 0
    alignment: Alignment = field(default_factory=Alignment)
    deviation: Deviation = field(default_factory=Deviation)
    bit_equal: bool = True

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            kind=self.kind,
            size=self.size + other.size,
            nonfinite_mismatch=self.nonfinite_mismatch + other.nonfinite_mismatch,
            alignment=self.alignment + other.alignment,
            deviation=self.deviation + other.deviation.moved(self.size),
            bit_equal=self.bit_equal and other.bit_equal,
        )

    @property
    def needed(self) -> float:
        """The smallest tolerance on `rel_l2` that would pass; inf where none would."""
        return math.inf if self.nonfinite_mismatch else self.alignment.rel_l2

    def columns(self, shape: tuple[int, ...]) -> dict[str, Json]:
        """Every metric that applies, by its column's name.

        Args:
            shape: The shape of the tensors, for the index of the worst element.

        Returns:
            Numbers, and for the worst element `max_abs_index` and both values; complex ones as `[real, imaginary]`.
            Where no position is finite on both sides, and they do not agree, there is nothing that others could tell.
        """
        if self.nonfinite_mismatch and not self.deviation.count:
            return {"nonfinite_mismatch": self.nonfinite_mismatch, "bit_equal": self.bit_equal}
        return {
            "rel_l2": self.alignment.rel_l2,
            "1-cos": self.alignment.one_minus_cosine,
            "norm_ratio": self.alignment.norm_ratio,
            **_peak_columns(self.deviation.peak, shape),
            "mismatch": self._share(self.deviation.mismatched),
            **self._relation_columns(),
            **self._float_columns(),
            "sqnr_db": self.alignment.sqnr_db,
            "nonfinite_mismatch": self.nonfinite_mismatch,
            "bit_equal": self.bit_equal,
        }

    def _relation_columns(self) -> dict[str, Json]:
        return {"max_rel": self.deviation.relations.max_rel} if self.kind in ("float", "complex") else {}

    def _float_columns(self) -> dict[str, Json]:
        if self.kind != "float":
            return {}
        relations, ulps = self.deviation.relations, self.deviation.ulps
        return {
            "ulp_max": ulps.largest,
            "ulp_share": self._share(ulps.above),
            "sign_flip": relations.flipped / relations.large if relations.large else 0.0,
        }

    def _share(self, count: int) -> float:
        return count / self.deviation.count if self.deviation.count else 0.0


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
