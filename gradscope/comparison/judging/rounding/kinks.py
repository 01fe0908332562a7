"""Kinks are where a derivative jumps, as that of a rectifier does at zero.

A value that is zero but for rounding may be just above zero in one program, and just below in another that is as right.
The two agree in the value, and a rectifier passes the gradient of the element in one of them only. In float32 that
happens to one of some 500,000 values: to 40 of a batch of two in ResNet-50. Of two values that are equal but for
rounding, a maximum passes its gradient to either. At the limits to which values are clipped, it passes or does not.

`Kinks` measures how much of a gradient is decided so. The signs of values near zero flip in smooth networks, too: there
the gradients of such elements are no further apart than those of others, and as many values are on either side of zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_floating
from gradscope.comparison.layout.operands import Operand, StoredOperand, counterpart
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key

#: The largest difference between a value and a kink that is rounding, relative to the root mean square of the value, or
#: of the difference of both values where it is larger.
_NEAR: Final = 1e-3
_NEAR_OF_ERROR: Final = 10.0

#: The largest share of the elements that rounding decides: more of them have another reason.
_MOST: Final = 0.01

#: The most elements of a tensor whose gradients may have moved to another element, or be cut off at a limit.
_MOST_MOVED: Final = 64

#: How far the gradient that one element loses may be from the one that another gains, relative to it.
_SAME: Final = 0.05

#: How many times the mean square of the differences elsewhere that of the elements whose signs flip is, at least, where
#: what reads them has a kink there; of no more than `_FEW` elements it is more, as a mean of few is often a large one.
_JUMP: Final = 4.0
_FEW: Final = 8

#: How many times as many values there are just on one side of zero as on the other, at least, where a rectifier with a
#: slope made them, and how near that is, relative to their root mean square: nothing smooth is so uneven there.
_UNEVEN: Final = 2.0
_BESIDE_ZERO: Final = 0.05

#: Elements that are read at once.
_ELEMENTS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KinkedShare:
    """`KinkedShare` states how much of the gradient of a value is at elements at which rounding decides.

    Attributes:
        count: The number of these elements.
        size: The number of all elements.
        made: The norm of the difference of the two gradients there, relative to that of the reference's gradient:
            the error that what reads the value makes.
        passed: The norm of the reference's gradient at elements whose sign flips, relative to that at all positive
            ones: the error that a rectifier makes of its gradient, where one computed the value.
    """

    count: int = 0
    size: int = 0
    made: float = 0.0
    passed: float = 0.0


_NONE: Final = KinkedShare()


class Kinks:
    """`Kinks` finds the kinks that decide the gradients of two dumps; each pair of tensors is read once.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._known: dict[tuple[Match, Match], KinkedShare] = {}

    def share(self, gradient: str, matches: Mapping[str, Match]) -> KinkedShare:
        """Returns the share of a gradient that kinks decide; none of another tensor, and without elements.

        Args:
            gradient: The key of the reference's owner.
            matches: The pairs of tensors, by the keys of the reference's owners.

        Raises:
            DumpError: One of the dumps is damaged.
        """
        value = self._value_of(gradient)
        if value not in matches or gradient not in matches:
            return _NONE
        pairs = matches[value], matches[gradient]
        if pairs not in self._known:
            self._known[pairs] = self._found((value, gradient), pairs)
        return self._known[pairs]

    def _found(self, owners: tuple[str, str], pairs: tuple[Match, Match]) -> KinkedShare:
        every = tuple(
            operand
            for key, match in zip(owners, pairs, strict=True)
            for operand in (StoredOperand(source=self._dumps.ref, key=key), counterpart(self._dumps.cand, match.recipe))
        )
        if not all(each.has_tensor and is_floating(each.entry.dtype) for each in every):
            return _NONE
        size, *others = (math.prod(each.entry.shape) for each in every)
        return _share(every, size) if size and all(other == size for other in others) else _NONE

    def _value_of(self, gradient: str) -> str:
        """Returns the owner of the value that a gradient is of; "" for another tensor."""
        family, name = split_key(gradient)
        value = key_of(ACTIVATION, name)
        known = family == ACTIVATION_GRAD and value in self._dumps.ref.keys()  # noqa: SIM118 - no mapping
        return self._dumps.ref.resolve(value) if known else ""


class _Elements(NamedTuple):
    """`_Elements` stores the values of some elements and the gradients of them, each in both programs, as float64."""

    ref: Array
    cand: Array
    ref_gradient: Array
    cand_gradient: Array

    @property
    def lost(self) -> Array:
        """The gradient that each element has in the reference only; negative where it is in the candidate only."""
        return self.ref_gradient - self.cand_gradient

    def at(self, which: Array) -> _Elements:
        return _Elements(*(each[which] for each in self))

    def with_more(self, more: _Elements) -> _Elements:
        return _Elements(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


class _Sums:
    """`_Sums` adds up what is known of the elements of a tensor, stretch by stretch.

    Attributes:
        flips: The number of elements whose sign flips.
        largest: The largest size of these.
        passing: The largest size of a value whose gradient is not zero in either program.
        top: The largest size of all.
        values: The sum of squares of the values.
        errors: That of the differences of the values.
        gradients: That of the gradients.
        positive: That of the gradients of positive values.
        flipped: That of the gradients where the sign flips.
        from_zero: That of the gradients where one of the two values is zero.
        difference: That of the difference of the gradients where the sign flips.
        elsewhere: That of the difference of the other gradients.
        above: The number of values that are just above zero.
        below: That of the values that are just below.
        outliers: The other elements whose gradients are the furthest apart.
    """

    def __init__(self) -> None:
        self.flips = self.above = self.below = 0
        self.largest = self.passing = self.top = 0.0
        self.values = self.errors = self.gradients = self.positive = 0.0
        self.flipped = self.from_zero = self.difference = self.elsewhere = 0.0
        self.outliers = _Elements(*(np.empty(0) for _ in range(4)))

    def add(self, stretch: _Elements) -> None:
        flips = np.sign(stretch.ref) != np.sign(stretch.cand)
        at_flips, others = stretch.at(flips), stretch.at(~flips)
        self.flips += len(at_flips.ref)
        flipped = np.abs(np.concatenate([at_flips.ref, at_flips.cand]))
        self.largest = max(self.largest, float(flipped.max(initial=0.0)))
        values = _squares(stretch.ref)
        beside = _BESIDE_ZERO * math.sqrt(values / len(stretch.ref))
        self.above += int(np.count_nonzero((stretch.ref > 0) & (stretch.ref < beside)))
        self.below += int(np.count_nonzero((stretch.ref < 0) & (stretch.ref > -beside)))
        self.values += values
        self.errors += _squares(stretch.ref - stretch.cand)
        self.gradients += _squares(stretch.ref_gradient)
        self.positive += _squares(stretch.ref_gradient[stretch.ref > 0])
        self.flipped += _squares(at_flips.ref_gradient)
        self.from_zero += _squares(at_flips.ref_gradient[(at_flips.ref == 0) | (at_flips.cand == 0)])
        self.difference += _squares(at_flips.lost)
        self.elsewhere += _squares(others.lost)
        sizes = np.abs(stretch.ref)
        self.top = max(self.top, float(sizes.max()))
        passing = (stretch.ref_gradient != 0) & (stretch.cand_gradient != 0)
        self.passing = max(self.passing, float(sizes.max(where=passing, initial=0.0)))
        self.outliers = _furthest(self.outliers.with_more(_furthest(others)))

    def made(self, size: int) -> float:
        """Returns the sum of squares of the differences that kinks make where signs flip; 0 where there is no kink."""
        usual = self.flips * self.elsewhere / (size - self.flips)
        is_jump = self.flips * self.difference >= _JUMP * (self.flips + _FEW) * usual
        return self.difference - usual if is_jump else 0.0

    def passed(self) -> float:
        """Returns the share of the gradient that a rectifier passes in one program only; 0 where none made the values.

        Where its slope is zero on one side, values are zero there. With another slope, more of them are just on one
        side than on the other.
        """
        fewer, more = sorted((self.above, self.below))
        flipped = self.flipped if more >= _UNEVEN * fewer else self.from_zero
        return math.sqrt(flipped / self.positive) if self.positive else 0.0


def _share(operands: tuple[Operand, ...], size: int) -> KinkedShare:
    sums = _Sums()
    for stretch in _stretches(operands, size):
        sums.add(stretch)
    if not all(map(math.isfinite, (sums.values, sums.gradients, sums.difference))) or not sums.gradients:
        return _NONE
    near = max(_NEAR * math.sqrt(sums.values / size), _NEAR_OF_ERROR * math.sqrt(sums.errors / size))
    found = KinkedShare(size=size)
    squares = 0.0
    if 0 < sums.flips <= _MOST * size and sums.largest <= near:
        squares, passed = sums.made(size), sums.passed()
        found = KinkedShare(count=sums.flips if squares or passed else 0, size=size, passed=passed)
    decided = _moved(sums.outliers, near) | _cut(sums, near)
    squares += _squares(sums.outliers.lost[decided])
    return KinkedShare(
        count=found.count + int(np.count_nonzero(decided)),
        size=size,
        made=math.sqrt(squares / sums.gradients),
        passed=found.passed,
    )


def _moved(elements: _Elements, near: float) -> Array:
    """Returns which of some elements gave their gradient to another, or got it, one being larger in each program."""
    lost = elements.lost
    with np.errstate(invalid="ignore"):  # infinite values are no pair: they differ by NaN
        ref, cand = (np.subtract.outer(each, each) for each in (elements.ref, elements.cand))
        left = np.abs(np.add.outer(lost, lost))  # of what one loses and another gains
        pairs = (np.abs(ref) <= near) & (ref * cand <= 0) & (left <= _SAME * np.abs(lost)) & (lost != 0)
    return (pairs & pairs.T).any(axis=1)


def _cut(sums: _Sums, near: float) -> Array:
    """Returns which outliers are at a limit to which values are clipped: no gradient passes beyond it."""
    elements = sums.outliers
    cut = (elements.ref_gradient == 0) != (elements.cand_gradient == 0)
    sizes = np.abs(elements.ref[cut])
    limit = float(np.median(sizes)) if sizes.size else math.inf
    is_limit = sums.passing <= limit + near < sums.top and bool(np.all(np.abs(sizes - limit) <= near))
    return cut & is_limit


def _furthest(elements: _Elements) -> _Elements:
    """Returns the elements whose gradients are the furthest apart."""
    apart = np.abs(elements.lost)
    if len(apart) <= _MOST_MOVED:
        return elements
    return elements.at(np.argpartition(apart, -_MOST_MOVED)[-_MOST_MOVED:])


def _squares(numbers: Array) -> float:
    return float(np.square(numbers).sum())


def _stretches(operands: tuple[Operand, ...], size: int) -> Iterator[_Elements]:
    for start in range(0, size, _ELEMENTS):
        stop = min(start + _ELEMENTS, size)
        yield _Elements(*(each.stretch(start, stop).astype(np.float64) for each in operands))
