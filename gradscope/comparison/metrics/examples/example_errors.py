"""`example_error` computes the error of per-example gradients, for a range of the parameter's elements at a time.

The spread and the random error of an element are relative to its mean over all examples, which are stored far apart in
the file. So the same range of elements is read from each example, and examples are merged a few at a time. The memory
is bounded, whatever the sizes of the parameter and the batch.

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
from gradscope.comparison.layout.operands import Operand
from gradscope.comparison.metrics.examples.example_spread import GROUPS, ExampleError
from gradscope.comparison.precision import dtype_class

#: The most elements of a parameter that are processed at a time, and the most elements of several examples together.
_COLUMNS: Final = 1 << 16
_ELEMENTS: Final = 1 << 19


def example_error(ref: Operand, cand: Operand) -> ExampleError:
    """Returns the error of the per-example gradients with respect to one parameter.

    Args:
        ref: The reference's gradients `[examples, ...]` of at least two examples.
        cand: The candidate's gradients of the same shape.

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
    """_Columns stores the mean of each element over some examples, and the sum of the squared deviations from it."""

    count: int
    mean: Array
    squares: Array

    @classmethod
    def nothing(cls, elements: int) -> _Columns:
        """Returns the columns of a number of elements over no example."""
        return cls(count=0, mean=np.zeros(elements), squares=np.zeros(elements))

    @classmethod
    def of(cls, rows: Array) -> _Columns:
        """Returns the columns of the rows of some examples; the rows are overwritten."""
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


def _of_columns(ref: Operand, cand: Operand, width: int, columns: range) -> ExampleError:
    """Returns the error in a range of a parameter's elements."""
    count, numbers = ref.entry.shape[0], len(columns) * (2 if dtype_class(ref.entry.dtype) == "complex" else 1)
    batch, error, sums = _Columns.nothing(numbers), _Columns.nothing(numbers), np.zeros((min(count, GROUPS), numbers))
    for rows in _rows(count, width, columns):
        one, other = (
            np.concatenate([_numbers(operand, row) for row in rows]).reshape(-1, numbers) for operand in (ref, cand)
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
    """Yields the positions of a range of elements in several examples: one range where it is all of them."""
    rows_per_read = max(1, _ELEMENTS // len(columns))
    for first in range(0, count, rows_per_read):
        stop = min(first + rows_per_read, count)
        rows = [range(row * width + columns.start, row * width + columns.stop) for row in range(first, stop)]
        yield [range(rows[0].start, rows[-1].stop)] if len(columns) == width else rows


def _numbers(operand: Operand, stretch: range) -> Array:
    """Returns a range of elements as float64, two numbers for a complex element."""
    elements = operand.stretch(stretch.start, stretch.stop)
    components = elements.view(f"f{elements.dtype.itemsize // 2}") if elements.dtype.kind == "c" else elements
    return real_values(components).astype(np.float64, copy=False)
