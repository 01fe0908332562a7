"""Examples: the error of each example's gradient, against the spread of the batch, and whether it is noise or bias.

With the gradients g_i of B examples in the reference, g'_i in the candidate, d_i = g'_i - g_i, and means over the
examples under a bar:

    spread of the batch   sigma^2 = sum |g_i - mean g|^2 / (B - 1)
    error                 e^2     = sum |d_i|^2 / B
    its random part       s^2     = sum |d_i - mean d|^2 / (B - 1)
    its systematic part   b^2     = |mean d|^2 - s^2 / B, and 0 where that is less

The metrics are shares of the batch's own spread: `spread` is e / sigma, `random` s / sigma, `bias` b / sigma.

Why: training follows the mean of noisy gradients anyhow. What is random from example to example averages out with the
batch's own noise, and low precision that adds a hundredth of it does no harm; a bias is the same in every example, and
no batch is large enough to average it out. |mean d|^2 is too large a measure of a bias by what chance leaves in a mean
of B, s^2 / B in expectation; without that it is an unbiased estimate, and e^2 = s^2 + b^2 but where b is clamped.

A bias is called *systematic* where |mean d| is more than three standard errors s / sqrt(B).

Sharp edges: a single example has neither spread nor parts. An element of the parameter takes part where it is finite in
every example on both sides. Squares beyond float64 do not count.

References:
    T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician
    37 (1983) 242-247: how blocks of examples are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import real_values
from gradscope.compare.sides import Side
from gradscope.compare.wording import counted, percent, times
from gradscope.dump.record import Json

#: Elements of a parameter that are looked at together, and of several examples together at a time.
_COLUMNS: Final = 1 << 16
_ELEMENTS: Final = 1 << 19

#: Standard errors above which a bias is more than chance.
_SURE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleError:
    """The error of the gradients of several examples, of one parameter or of many; those of many add up.

    Attributes:
        count: Number of examples.
        batch_variance: sigma^2, summed over elements.
        random_variance: s^2.
        mean_square: |mean d|^2.
    """

    count: int
    batch_variance: float = 0.0
    random_variance: float = 0.0
    mean_square: float = 0.0

    def __add__(self, other: ExampleError) -> ExampleError:
        return ExampleError(
            count=self.count,
            batch_variance=self.batch_variance + other.batch_variance,
            random_variance=self.random_variance + other.random_variance,
            mean_square=self.mean_square + other.mean_square,
        )

    @property
    def spread(self) -> float:
        """The error of an example as a share of the batch's own spread; 0/0 is 0, x/0 is inf."""
        within = self.random_variance * (self.count - 1) / self.count
        return self._share(within + self.mean_square)

    @property
    def random(self) -> float:
        """Its random part, likewise."""
        return self._share(self.random_variance)

    @property
    def bias(self) -> float:
        """Its systematic part, likewise."""
        return self._share(max(self.mean_square - self.random_variance / self.count, 0.0))

    @property
    def standard_errors(self) -> float:
        """The mean error in units of what chance leaves in a mean; inf where the error is the same in every example."""
        chance = self.random_variance / self.count
        if chance:
            return math.sqrt(self.mean_square / chance)
        return math.inf if self.mean_square else 0.0

    @property
    def systematic(self) -> bool:
        """Whether there is a bias beyond what chance makes."""
        return self.standard_errors > _SURE

    @property
    def sentence(self) -> str:
        """The same for a human."""
        if math.isinf(self.spread):
            return "Per example there is an error, and the batch has no spread of its own to hold it against."
        size = (
            f"Per example the error is {percent(self.spread)} of the batch's own spread: {percent(self.random)} random"
        )
        if self.systematic:
            return f"{size}, {percent(self.bias)} systematic bias ({times(self.standard_errors)} its standard error)."
        return f"{size}, {percent(self.bias)} bias, which is no more than chance in {counted(self.count, 'example')}."

    def columns(self) -> dict[str, Json]:
        """The metrics by the names of their columns."""
        return {"spread": self.spread, "random": self.random, "bias": self.bias}

    def to_json(self) -> dict[str, Json]:
        """The metrics, and what they say."""
        return {
            "count": self.count,
            **self.columns(),
            "standard_errors": self.standard_errors,
            "systematic": self.systematic,
            "sentence": self.sentence,
        }

    def _share(self, variance: float) -> float:
        if self.batch_variance:
            return math.sqrt(variance / self.batch_variance)
        return math.inf if variance else 0.0


def example_error(ref: Side, cand: Side) -> ExampleError:
    """The error of the gradients of several examples with respect to one parameter.

    Args:
        ref: The reference's gradients `[examples, ...]`, of two examples at least.
        cand: The candidate's, of the same shape.

    Returns:
        The error.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    shape = ref.entry.shape
    total, width = ExampleError(count=shape[0]), math.prod(shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, width, _COLUMNS):
            total += _of_columns(ref, cand, width, range(start, min(start + _COLUMNS, width)))
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Of each element of a parameter its mean over some examples, and the sum of the squares of what is left."""

    count: int
    mean: Array
    squares: Array

    @classmethod
    def of(cls, rows: Array) -> _Columns:
        """Of some examples' rows, which do not outlive it."""
        mean = rows.mean(axis=0)
        np.subtract(rows, mean, out=rows)
        return cls(count=len(rows), mean=mean, squares=np.einsum("ij,ij->j", rows, rows))

    def __add__(self, other: _Columns) -> _Columns:
        count, apart = self.count + other.count, other.mean - self.mean
        return _Columns(
            count=count,
            mean=self.mean + apart * (other.count / count),
            squares=self.squares + other.squares + np.square(apart) * (self.count * other.count / count),
        )

    @property
    def finite(self) -> Array:
        return np.isfinite(self.mean) & np.isfinite(self.squares)


def _of_columns(ref: Side, cand: Side, width: int, columns: range) -> ExampleError:
    """The error in some elements of a parameter."""
    count = ref.entry.shape[0]
    parts = (_of_rows(ref, cand, rows, len(columns)) for rows in _rows(count, width, columns))
    batch, error = reduce(lambda one, other: (one[0] + other[0], one[1] + other[1]), parts)
    finite = batch.finite & error.finite
    return ExampleError(
        count=count,
        batch_variance=float(batch.squares[finite].sum()) / (count - 1),
        random_variance=float(error.squares[finite].sum()) / (count - 1),
        mean_square=float(np.square(error.mean[finite]).sum()),
    )


def _rows(count: int, width: int, columns: range) -> Iterator[list[range]]:
    """Where those elements of several examples at a time lie: in one stretch where that is all they have."""
    together = max(1, _ELEMENTS // len(columns))
    for first in range(0, count, together):
        stop = min(first + together, count)
        rows = [range(row * width + columns.start, row * width + columns.stop) for row in range(first, stop)]
        yield [range(rows[0].start, rows[-1].stop)] if len(columns) == width else rows


def _of_rows(ref: Side, cand: Side, rows: list[range], elements: int) -> tuple[_Columns, _Columns]:
    """The reference's gradients and the errors in some elements of some examples."""
    count = sum(map(len, rows)) // elements
    one, other = (np.concatenate([_numbers(side, row) for row in rows]).reshape(count, -1) for side in (ref, cand))
    error = _Columns.of(np.subtract(other, one, out=other))
    return _Columns.of(one), error


def _numbers(side: Side, stretch: range) -> Array:
    """A stretch in float64, two numbers for a complex one."""
    elements = side.stretch(stretch.start, stretch.stop)
    components = elements.view(f"f{elements.dtype.itemsize // 2}") if elements.dtype.kind == "c" else elements
    return real_values(components).astype(np.float64, copy=False)
