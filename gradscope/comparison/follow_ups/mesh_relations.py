"""Mesh relations say how what the devices along an axis of a mesh have is made of what there is on fewer.

Each is measured on the values. A relation that any values have, as two examples are always a straight line, does not
count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.follow_ups.mesh_fault import FaultKind
from gradscope.comparison.follow_ups.mesh_values import AxisValues

#: How far values may be from a relation, relative to their size.
_NEAR: Final = 1e-3

#: The fewest elements of a channel on a device that show a straight line.
_FEWEST: Final = 4

#: The least share of elements that are zero on no device, by which a sum is known.
_LEAST_KNOWN: Final = 0.01

#: The least share of elements that a random mask makes zero, and the most.
_MASKED: Final = (0.02, 0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A `Relation` is one that values have.

    Attributes:
        kind: Which.
        detail: A clause with its numbers; "" for none.
    """

    kind: FaultKind
    detail: str = ""


def relation_of(values: AxisValues) -> Relation | None:
    """Returns the relation that what the devices along an axis have is in to what there is on fewer; None for none."""
    if not np.any(values.whole) or not all(np.isfinite(each).all() for each in (values.whole, *values.several)):
        return None
    tests = _OF_SLICES if values.sliced is not None else _OF_WHOLES
    return next((found for test in tests if (found := test(values)) is not None), None)


def factor_between(one: Array, other: Array) -> float | None:
    """Returns the number that makes `other` of `one`, but for rounding; None where none does."""
    power = float(np.vdot(one, one))
    factor = float(np.vdot(one, other)) / power if power else 0.0
    return factor if factor and _is_near(other, factor * one) else None


def are_masked_otherwise(one: Array, other: Array) -> bool:
    """Returns whether a random mask has made other elements of an array zero than those of another, and that alone."""
    low, high = _MASKED
    both = (one != 0) & (other != 0)
    if not low < np.mean(other == 0) < high or np.array_equal(one == 0, other == 0):
        return False
    return bool(both.any()) and _is_near(other[both], one[both])


def _is_near(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= _NEAR * np.linalg.norm(other))


def _terms(values: AxisValues) -> Relation | None:
    # What each device adds to its term, as a bias, is the same for all examples.
    total = np.sum(values.several, axis=0)
    if _is_near(values.several[0], values.several[-1]):
        return None
    if total.ndim < 2:  # with what is added to it, a vector may be any other
        sums = (total, total / len(values.several))
        return Relation(kind="terms") if any(_is_near(values.whole, each) for each in sums) else None
    rest = total - values.whole
    constant = rest.mean(axis=tuple(range(rest.ndim - 1)), keepdims=True)
    near = np.linalg.norm(rest - constant) <= _NEAR * np.linalg.norm(values.whole)
    return Relation(kind="terms") if near else None


def _summed(values: AxisValues) -> Relation | None:
    # A rectifier may make some of them zero behind the sum.
    one, several = np.stack([*values.one]), np.stack([*values.several])
    known = (several != 0).all(axis=0)
    if known.sum() < _FEWEST or known.mean() < _LEAST_KNOWN:
        return None
    return (
        Relation(kind="summed") if _is_near(several[:, known], one.sum(axis=0)[known] + 0 * several[:, known]) else None
    )


def _order(values: AxisValues) -> Relation | None:
    return _reordered(values.one, values.several)


def _order_within(values: AxisValues) -> Relation | None:
    # Each device has the slices of all devices, along some axis of the tensor.
    count = len(values.several)
    for axis, length in enumerate(values.whole.shape):
        if length % count == 0 and all(_is_near(each, values.several[0]) for each in values.several):
            blocks, others = (np.split(each, count, axis) for each in (values.whole, values.several[0]))
            if (found := _reordered(blocks, others)) is not None:
                return found
    return None


def _reordered(one: Sequence[Array], several: Sequence[Array]) -> Relation | None:
    order = [next((slot for slot, block in enumerate(one) if _is_near(each, block)), -1) for each in several]
    if sorted(order) != [*range(len(one))] or order == sorted(order):
        return None
    return Relation(kind="order", detail=f": the first slice is number {order[0]}")


def _weights(values: AxisValues) -> Relation | None:
    factors = [factor_between(one, other) for one, other in zip(values.one, values.several, strict=True)]
    known = [each for each in factors if each is not None]
    if len(known) < len(factors) or max(known) - min(known) <= _NEAR * max(map(abs, known)):
        return None
    return Relation(kind="weights", detail=", ".join(f"{each:.3g}" for each in known))


def _zeros(values: AxisValues) -> Relation | None:
    one, other = np.stack([*values.one]), np.stack([*values.several])
    if not are_masked_otherwise(one, other):
        return None
    # An element that both masks drop, or that was zero before, says nothing.
    known = ((one != 0) | (other != 0)).all(axis=0)
    kept = (other != 0)[:, known]
    repeated = kept.size and bool((kept == kept[0]).all())
    return Relation(kind="zeros", detail=", the same ones on each" if repeated else "")


def _statistics(values: AxisValues) -> Relation | None:
    for channels in range(values.whole.ndim - 1, -1, -1):
        lines = [_line(one, other, channels) for one, other in zip(values.one, values.several, strict=True)]
        known = [each for each in lines if each is not None]
        if (
            channels != values.sliced
            and len(known) == len(lines)
            and not all(_is_near(each, known[0]) for each in known)
        ):
            return Relation(kind="statistics")
    return None


def _line(one: Array, other: Array, channels: int) -> Array | None:
    """Returns by which multiples and numbers each channel of `other` is made of that of `one`; None where it is not."""
    x, y = (np.moveaxis(each, channels, 0).reshape(each.shape[channels], -1) for each in (one, other))
    if x.shape[1] < _FEWEST:
        return None
    means = x.mean(1, keepdims=True), y.mean(1, keepdims=True)
    x, y = x - means[0], y - means[1]
    power = (x * x).sum(1, keepdims=True)
    slope = (x * y).sum(1, keepdims=True) / np.where(power, power, 1.0)
    is_line = np.linalg.norm(y - slope * x) <= _NEAR * np.linalg.norm(y)
    return np.concatenate([slope, means[1] - slope * means[0]]) if is_line else None


def _first_device(values: AxisValues) -> Relation | None:
    near = [_is_near(other, one) for one, other in zip(values.one, values.several, strict=True)]
    return Relation(kind="first device") if near[0] and not any(near[1:]) else None


_Test: TypeAlias = Callable[[AxisValues], Relation | None]
_OF_SLICES: Final[tuple[_Test, ...]] = (_summed, _order, _weights, _zeros, _statistics, _first_device)
_OF_WHOLES: Final[tuple[_Test, ...]] = (_terms, _order_within)
