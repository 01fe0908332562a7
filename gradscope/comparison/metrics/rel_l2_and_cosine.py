"""Computes `rel_l2`, `1-cos`, `norm_ratio` and `sqnr_db` of two tensors in one pass over their blocks.

`alignment_of` returns the `Alignment` of one block; the alignments of blocks add up to that of the tensor.

    ============  ======================================================================================
    a, b          reference and candidate; d = b - a
    slope         t = <a, b> / |a|^2: t a is the multiple of a that is nearest to b
    residual      |b - t a|: the part of b orthogonal to a, so that sin(a, b) = residual / |b|
    ============  ======================================================================================

Why not `1 - <a, b> / (|a| |b|)`: for nearly parallel vectors it subtracts two numbers that agree in every digit.
`|a/|a| - b/|b||^2 / 2` does not, but needs both norms first, which takes a second pass. Here one pass keeps the slope
and the residual of the blocks so far, and two parts merge without a subtraction,

    residual^2 = residual_1^2 + residual_2^2 + (t_1 - t_2)^2 |a_1|^2 |a_2|^2 / (|a_1|^2 + |a_2|^2),

the update of Chan, Golub and LeVeque for a regression through the origin. At the end, with s and c the sine and cosine
of the angle, `1 - c = s^2 / (1 + c)` where c > 0, and `1 - c` itself where that cannot cancel.

Accuracy: within a block the residual is relative to a multiple of `a` that floating point represents exactly. The sine
has a relative error near 1e-15 for types of up to 24 bits and, in float64, an absolute error near 1e-16; it is more
accurate where the vectors differ mostly in direction. So `1-cos` is correct for values far below 1e-16.

Sharp edges, all in float64: where one tensor is 2^450 times smaller than the other, the smaller counts as zero. Norms
beyond 1.8e308 share a common exponent, so ratios of such norms are correct.

References:
    T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician
    37 (1983) 242-247.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.moments import inner
from gradscope.arrays.scratch import scratch
from gradscope.comparison.metrics.block_pairs import BlockBuffer

#: Sums of squares in this range have lost no digits to underflow or overflow.
SQUARES: Final = (2.0**-900, 2.0**900)

#: Bits of a slope: its product with a number of 24 bits then fits the 53 bits of float64 without rounding.
_SLOPE_BITS: Final = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Alignment stores the norms of two vectors, of their difference, and their angle as slope and residual.

    Attributes:
        ref: |a|; all norms are in units of 2^exponent.
        cand: |b|.
        difference: |d|.
        residual: |b - t a|.
        slope: The slope t to a few digits.
        correction: The rest of t. It is stored apart, because a sum in float64 would round it away.
        exponent: The unit of the norms as a power of two; 0 unless they exceed the range of float64.
    """

    ref: float = 0.0
    cand: float = 0.0
    difference: float = 0.0
    residual: float = 0.0
    slope: float = 1.0
    correction: float = 0.0
    exponent: int = 0

    def __add__(self, other: Alignment) -> Alignment:
        # A zero vector must not impose its exponent on the other part.
        if not (self.ref or self.cand) or not (other.ref or other.cand):
            return other if other.ref or other.cand else self
        exponent = max(self.exponent, other.exponent)
        large, small = sorted((self.in_units(exponent), other.in_units(exponent)), key=lambda part: -part.ref)
        ref = math.hypot(large.ref, small.ref)
        major, minor = (large.ref / ref, small.ref / ref) if ref else (1.0, 0.0)
        apart = (small.slope - large.slope) + (small.correction - large.correction)
        return Alignment(
            ref=ref,
            cand=math.hypot(large.cand, small.cand),
            difference=math.hypot(large.difference, small.difference),
            residual=math.hypot(large.residual, small.residual, apart * small.ref * major),
            slope=large.slope,
            correction=large.correction + apart * minor * minor,
            exponent=exponent,
        )

    def in_units(self, exponent: int) -> Alignment:
        """Returns the same alignment with norms in units of 2^exponent."""
        if exponent == self.exponent:
            return self
        power = self.exponent - exponent
        return replace(
            self,
            ref=math.ldexp(self.ref, power),
            cand=math.ldexp(self.cand, power),
            difference=math.ldexp(self.difference, power),
            residual=math.ldexp(self.residual, power),
            exponent=exponent,
        )

    @property
    def distance(self) -> float:
        """`l2(d)`; inf beyond the range of float64."""
        try:
            return math.ldexp(self.difference, self.exponent)
        except OverflowError:
            return math.inf

    @property
    def rel_l2(self) -> float:
        """`l2(d) / l2(a)`; 0/0 is 0, x/0 is inf."""
        return _ratio(self.difference, self.ref, of_nothing=0.0)

    @property
    def norm_ratio(self) -> float:
        """`l2(b) / l2(a)`; 1 where both are zero, because equal tensors have equal metrics whatever their values."""
        return _ratio(self.cand, self.ref, of_nothing=1.0)

    @property
    def sqnr_db(self) -> float:
        """`20 log10(l2(a) / l2(d))`; inf without a difference, -inf for a reference of zero."""
        if self.difference == 0:
            return math.inf
        return 20 * math.log10(self.ref / self.difference) if self.ref else -math.inf

    @property
    def one_minus_cosine(self) -> float:
        """`1 - cos(a, b)`; 0 for two zero vectors, 1 for a zero vector and any other."""
        if self.ref == 0 or self.cand == 0:
            return 0.0 if self.ref == self.cand else 1.0
        cosine = (self.slope + self.correction) * (self.ref / self.cand)
        if cosine <= 0:
            return min(1 - cosine, 2.0)
        return (self.residual / self.cand) ** 2 / (1 + cosine)


def alignment_of(ref: Array, cand: Array, difference: Array, square: float) -> Alignment:
    """Returns the alignment of one block.

    Args:
        ref: The reference's elements: one-dimensional, contiguous, float64, all finite.
        cand: The candidate's elements, likewise; used for their norm where `difference` is more exact.
        difference: `cand - ref`.
        square: The inner product of `difference` with itself.
    """
    squares = _Squares(inner(ref, ref), inner(cand, cand), square)
    if not _in_range(max(squares.ref, squares.cand)) and (exponent := _exponent(ref, cand)):
        return _scaled_alignment(ref, cand, exponent)
    return _plain_alignment(ref, cand, difference, squares)


class _Squares(NamedTuple):
    """_Squares stores the inner product of each vector with itself."""

    ref: float
    cand: float
    difference: float


def _plain_alignment(ref: Array, cand: Array, difference: Array, known: _Squares) -> Alignment:
    squares, cand_squares = (each if _in_range(each) else 0.0 for each in (known.ref, known.cand))
    square, along = known.difference, inner(ref, difference) if squares else 0.0
    lengths = Alignment(ref=math.sqrt(squares), cand=math.sqrt(cand_squares), difference=math.sqrt(square))
    if along * along <= squares * square / 2:
        residual = square - along * along / squares if squares else square
        return replace(lengths, residual=math.sqrt(residual), correction=along / squares if squares else 0.0)
    slope = _short(inner(ref, cand) / squares)
    rest = np.multiply(ref, slope, out=scratch(BlockBuffer.WORK, ref.size, np.float64))
    np.subtract(cand, rest, out=rest)
    along = inner(ref, rest)
    residual = max(inner(rest, rest) - along * along / squares, 0.0)
    return replace(lengths, residual=math.sqrt(residual), slope=slope, correction=along / squares)


def _scaled_alignment(ref: Array, cand: Array, exponent: int) -> Alignment:
    ref, cand = np.ldexp(ref, -exponent), np.ldexp(cand, -exponent)
    difference = cand - ref
    squares = _Squares(*(inner(each, each) for each in (ref, cand, difference)))
    plain = _plain_alignment(ref, cand, difference, squares)
    return replace(plain, exponent=exponent)


def _exponent(ref: Array, cand: Array) -> int:
    largest = max(float(np.abs(ref).max(initial=0)), float(np.abs(cand).max(initial=0)))
    return math.frexp(largest)[1]


def _in_range(squares: float) -> bool:
    return SQUARES[0] < squares < SQUARES[1]


def _short(slope: float) -> float:
    significand, exponent = math.frexp(slope)
    return math.ldexp(round(math.ldexp(significand, _SLOPE_BITS)), exponent - _SLOPE_BITS)


def _ratio(numerator: float, denominator: float, *, of_nothing: float) -> float:
    if denominator:
        return numerator / denominator
    return math.inf if numerator else of_nothing
