"""Measuring the error of the gradients of examples: some elements of the parameter at a time, in all examples.

Spread and random error of an element are about its mean over all examples, which lie far from each other in the file.
So elements are read in stretches, one from each example, and examples are merged a few at a time: in bounded memory,
whatever the sizes of the parameter and the batch.

References:
    T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician
    37 (1983) 242-247.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.operands import Side
from gradscope.comparison.metrics.example_spread import GROUPS, ExampleError
from gradscope.comparison.precision import kind_of

#: Elements of a parameter that are looked at together, and of several examples together at a time.
_COLUMNS: Final = 1 << 16
_ELEMENTS: Final = 1 << 19


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
    def nothing(cls, elements: int) -> _Columns:
        """Of so many elements before there is an example."""
        return cls(count=0, mean=np.zeros(elements), squares=np.zeros(elements))

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
    count, numbers = ref.entry.shape[0], len(columns) * (2 if kind_of(ref.entry.dtype) == "complex" else 1)
    batch, error, sums = _Columns.nothing(numbers), _Columns.nothing(numbers), np.zeros((min(count, GROUPS), numbers))
    for rows in _rows(count, width, columns):
        one, other = (
            np.concatenate([_numbers(side, row) for row in rows]).reshape(-1, numbers) for side in (ref, cand)
        )
        np.subtract(other, one, out=other)
        for example, row in enumerate(other, error.count):
            sums[example % len(sums)] += row
        batch, error = batch + _Columns.of(one), error + _Columns.of(other)
    finite = batch.finite & error.finite & np.isfinite(np.square(sums).sum(axis=0))
    known = sums[:, finite]
    return ExampleError(
        count=count,
        batch_variance=float(batch.squares[finite].sum()) / (count - 1),
        random_variance=float(error.squares[finite].sum()) / (count - 1),
        products=tuple(np.matmul(known, known.T).ravel().tolist()),
    )


def _rows(count: int, width: int, columns: range) -> Iterator[list[range]]:
    """Where those elements of several examples at a time lie: in one stretch where that is all they have."""
    together = max(1, _ELEMENTS // len(columns))
    for first in range(0, count, together):
        stop = min(first + together, count)
        rows = [range(row * width + columns.start, row * width + columns.stop) for row in range(first, stop)]
        yield [range(rows[0].start, rows[-1].stop)] if len(columns) == width else rows


def _numbers(side: Side, stretch: range) -> Array:
    """A stretch in float64, two numbers for a complex one."""
    elements = side.stretch(stretch.start, stretch.stop)
    components = elements.view(f"f{elements.dtype.itemsize // 2}") if elements.dtype.kind == "c" else elements
    return real_values(components).astype(np.float64, copy=False)
