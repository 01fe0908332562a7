"""The yardstick of one pair: what its metrics are measured against, decided once and not per block."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.compare.precision import coarser, kind_of, small_magnitude, ulp_allowance


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the elements of a pair are measured against.

    Attributes:
        kind: What sort of numbers they are, as `precision.kind_of` has it.
        dtype: The coarser dtype, for floating-point and complex pairs of their components; else the reference's.
        rtol: The relative part of numpy's rule.
        atol: Its absolute part.
    """

    kind: str
    dtype: str
    rtol: float
    atol: float

    @property
    def small(self) -> float:
        """The magnitude below which relations do not count."""
        return small_magnitude(self.dtype)

    @property
    def ulp_allowance(self) -> int:
        """The distance in units in the last place that is nothing special."""
        return ulp_allowance(self.dtype)


def yardstick_of(ref_dtype: str, cand_dtype: str, *, rtol: float, atol: float) -> Yardstick:
    """The yardstick of two tensors of one kind."""
    kind = kind_of(ref_dtype)
    dtype = coarser(ref_dtype, cand_dtype) if kind in ("float", "complex") else ref_dtype
    return Yardstick(kind=kind, dtype=dtype, rtol=rtol, atol=atol)
