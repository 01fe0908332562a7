"""`element_difference` shows where in one tensor the difference is: its worst elements and its spread along each axis.

The *energy* of a difference is the square of its magnitude. Along an axis, the energy can be concentrated at one index
(a head, a channel, an example) or spread over all. `effective` is the number of indices with equal shares that would be
as concentrated, the inverse of the sum of squared shares: 1 where all energy is at one index, the axis's size where it
is spread evenly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.compare_dumps import compare
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.metrics.elementwise import Scalar
from gradscope.comparison.metrics.fills import fill_of
from gradscope.dump.interfaces import DumpSource
from gradscope.errors import UsageError
from gradscope.naming import Selection, key_of, printable, split_key
from gradscope.naming.selecting.nearest_names import nearest_hint

#: How many of the worst elements are listed.
_WORST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement:
    """WorstElement stores an index, both values, and the magnitude of the difference, inf where one is not finite."""

    index: tuple[int, ...]
    ref: Scalar
    cand: Scalar
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisError:
    """AxisError stores how the energy of a difference is spread along one axis.

    Attributes:
        axis: The number of the axis.
        size: Its size.
        worst: The index with the most energy.
        share: The fraction of the energy at that index, from 0 to 1.
        effective: The number of indices with equal shares that would be as concentrated.
    """

    axis: int
    size: int
    worst: int
    share: float
    effective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementDifference:
    """ElementDifference stores the difference of one tensor, element by element.

    Attributes:
        row: Its row in a comparison.
        magnitudes: The magnitude of the difference of each element; inf where one value is not finite, and the other is
            finite or another non-finite value.
        worst: The worst elements, the largest difference first, without equal elements.
        axes: The spread along each axis; empty where there is no difference.
    """

    row: ComparisonRow
    magnitudes: Array
    worst: tuple[WorstElement, ...]
    axes: tuple[AxisError, ...]


def element_difference(ref: DumpSource, cand: DumpSource, key: str) -> ElementDifference:
    """Returns the difference of one tensor of two dumps, element by element; both tensors are read into memory.

    Args:
        ref: The reference.
        cand: The candidate.
        key: The tensor's key in the reference, or its name where only one family has it.

    Raises:
        UsageError: There is no such tensor or there are several, or it cannot be subtracted.
        DumpError: One of the dumps is damaged.
    """
    own = _key(ref, key)
    found = compare(ref, cand, options=CompareOptions(selection=Selection.parse([f"re:{re.escape(own)}"])))
    row = next(row for row in found.rows if key_of(row.family, row.name) == own)
    if "rel_l2" not in row.metrics:
        raise UsageError(f"{printable(own)} cannot be subtracted: {row.why or 'the candidate has no counterpart'}")
    match = next(match for match in found.matches if match.ref == own)
    one, other = ref.array(match.ref), match.recipe.array(cand)
    magnitudes = _magnitudes(_numbers(one), _numbers(other))
    if row.metrics.get("masked"):  # two masks may write two numbers, which is no difference
        ref_fill, cand_fill = (fill_of([_numbers(each).reshape(-1)]) for each in (one, other))
        magnitudes = np.where((one == ref_fill) & (other == cand_fill), 0.0, magnitudes)
    return ElementDifference(
        row=row,
        magnitudes=magnitudes,
        worst=_worst(one, other, magnitudes),
        axes=_axes(magnitudes),
    )


def _key(source: DumpSource, key: str) -> str:
    keys = source.keys()
    named = [key] if key in keys else [each for each in keys if split_key(each)[1] == key]
    if not named:
        raise UsageError(f"the reference has no tensor {printable(key)!r}", hint=nearest_hint(key, keys))
    if len(named) > 1:
        hint = f"give one of {', '.join(map(printable, named))}"
        raise UsageError(f"several tensors have the name {printable(key)!r}", hint=hint)
    return named[0]


def _numbers(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _magnitudes(ref: Array, cand: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.abs(cand - ref)
    equal = (ref == cand) | (np.isnan(ref) & np.isnan(cand))
    return np.where(equal, 0.0, np.where(np.isnan(distances), np.inf, distances))


def _worst(ref: Array, cand: Array, magnitudes: Array) -> tuple[WorstElement, ...]:
    flat = magnitudes.reshape(-1)
    count = min(_WORST, int(np.count_nonzero(flat)))
    largest = np.argpartition(-flat, count - 1)[:count] if count else np.empty(0, np.int64)
    order = largest[np.lexsort((largest, -flat[largest]))]
    indices = (tuple(map(int, np.unravel_index(position, magnitudes.shape))) for position in order)
    return tuple(
        WorstElement(
            index=index, ref=_numbers(ref[index]).item(), cand=_numbers(cand[index]).item(),
            difference=float(magnitudes[index]),
        )
        for index in indices
    )  # fmt: skip


def _axes(magnitudes: Array) -> tuple[AxisError, ...]:
    largest = float(magnitudes.max(initial=0.0))
    if largest == 0:
        return ()
    # An infinite difference outweighs every finite one: then only the number of infinite elements counts.
    energy = np.isinf(magnitudes).astype(np.float64) if np.isinf(largest) else np.square(magnitudes / largest)
    return tuple(_axis(energy, axis) for axis in range(energy.ndim))


def _axis(energy: Array, axis: int) -> AxisError:
    along = energy.sum(axis=tuple(other for other in range(energy.ndim) if other != axis))
    shares = along / along.sum()
    worst = int(shares.argmax())
    return AxisError(
        axis=axis,
        size=energy.shape[axis],
        worst=worst,
        share=float(shares[worst]),
        effective=float(1 / np.square(shares).sum()),
    )
