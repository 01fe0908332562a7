"""`norm_difference` tells in what the norms of two programs differ that read the same.

A norm multiplies what it reads, less the mean, by one number for each group of values, as for a channel of a batch:
`scale / sqrt(variance + epsilon)`. The number is found by the values, and with the variance it says what is added to
that, and by how many values that is divided. A norm whose numbers are not those of what it reads has other statistics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.norms.norm_factors import NEARLY, NormFactors

#: The relative error up to which a value is that of a norm.
_ROUNDING: Final = 1e-5

#: The share of the difference that is left where a norm is known well enough, and that its numbers make at least.
_LEFT: Final = 0.1
_MOST: Final = 0.9

#: How many times worse every other explanation has to be.
_CLEARLY: Final = 3

#: The largest number of elements of a value that is looked at, and the most groups of channels.
_MOST_ELEMENTS: Final = 1 << 18
MOST_GROUPS: Final = 64

#: At how many places along each axis but that of the channels a norm is tried first, and the relative error up to which
#: it may make them.
_FEW_PLACES: Final = 8
_MAY_MAKE: Final = 1e-3

#: The fewest values of a group that say anything, and the fewest groups that tell a number which is added to variances
#: from one that they are multiplied by. Two groups show that a norm makes them: one number is added to both variances.
_FEWEST: Final = 4
_FEWEST_GROUPS: Final = 2

#: How far the deviation of a group alone is from one at most behind a norm: what is added to a variance is small.
_UNIT: Final = 1e-2


def norm_difference(values: tuple[Array, Array], reads: Sequence[tuple[Array, Array]]) -> str:
    """Returns a clause about how the candidate's norm differs from the reference's; "" where that is not known.

    Args:
        values: What both compute, in the layout of the reference.
        reads: What both read, the parameters among that.
    """
    ref, cand = values
    if not 1 < ref.size <= _MOST_ELEMENTS:
        return ""
    reads = [*zip(*(_with_vectors([pair[side] for pair in reads], ref.shape) for side in (0, 1)), strict=True)]
    one, other = (_found([pair[side] for pair in reads], value) for side, value in enumerate(values))
    if one is not None and other is not None:
        if one[0].read != other[0].read:  # norms of two values
            return ""
        words = _of_groups(one[0], other[0])
        return words or _of_factors(one[1], other[1], float(np.linalg.norm(cand - ref)))
    if any(own.shape != its.shape for own, its in reads):  # the layer of the other program reads something else
        one = other = None
    if one is not None and (others := one[0].other_numbers([pair[1] for pair in reads], cand)):
        return f"normalises by {others}, and the reference by {_numbers(one[0])}"
    if other is not None and (others := other[0].other_numbers([pair[0] for pair in reads], ref)):
        return f"normalises by {_numbers(other[0])}, and the reference by {others}"
    return ""


def _numbers(norm: _Norm) -> str:
    return f"the {'mean and the variance' if norm.centred else 'mean square'} of what it reads"


def is_norm(reads: Sequence[Array], value: Array) -> bool:
    """Returns whether a value is that of a norm.

    Args:
        reads: What the layer reads, its parameters among that.
        value: What it computes.
    """
    return 1 < value.size <= _MOST_ELEMENTS and _found(_with_vectors(reads, value.shape), value) is not None


def _with_vectors(reads: Sequence[Array], shape: tuple[int, ...]) -> list[Array]:
    """Returns what a layer reads, the scales that have axes of one element beside that of the channels as vectors."""
    others = (each.shape != shape and each.size == max(each.shape, default=0) for each in reads)
    return [each.reshape(-1) if is_vector else each for each, is_vector in zip(reads, others, strict=True)]


def _found(reads: Sequence[Array], value: Array) -> tuple[_Norm, NormFactors] | None:
    """Returns the norm that makes a value of what is read, and by what it multiplies; None where none does."""
    found = ((norm, norm.factors(reads, value)) for norm in _norms(reads, value.shape))
    return next(((norm, factors) for norm, factors in found if factors is not None), None)


def _of_groups(ref: _Norm, cand: _Norm) -> str:
    """Returns what values two norms have in one group, in words; "" where they have the same, and subtract alike."""
    if (ref.groups, ref.interleaved, ref.axes) != (cand.groups, cand.interleaved, cand.axes):
        return f"normalises over {cand.words}, and the reference over {ref.words}"
    if ref.centred is cand.centred:
        return _of_scales(ref, cand)
    return (
        "subtracts the mean, and the reference does not"
        if cand.centred
        else "does not subtract the mean, and the reference does"
    )


def _of_scales(ref: _Norm, cand: _Norm) -> str:
    """Returns by what two norms multiply, in words; "" where it is by the same."""
    if ref.scale is None or cand.scale is None or ref.beside == cand.beside:
        return ""
    return (
        "multiplies by one more than its scale, and the reference by that"
        if cand.beside
        else "multiplies by its scale, and the reference by one more than that"
    )


def _of_factors(ref: NormFactors, cand: NormFactors, difference: float) -> str:
    """Returns what makes the factors of two norms differ, in words; "" where that is not clear."""
    made = ref.error(cand.factor)
    if made < _MOST * difference or ref.variance.size < _FEWEST:
        return ""
    one: list[tuple[float, str]] = []
    both: list[tuple[float, str]] = []
    for less in (0, 1):
        own, its, other = ref.epsilon(less), cand.epsilon(less), cand.epsilon(1 - less)
        if cand.error(cand.made(less, own)) < _MOST * made:  # the same norm of other values makes it
            continue
        expected = ref.error(ref.made(less, own))
        divided = f"divides the variance by {ref.count - (1 - less)}, and the reference by {ref.count - less}"
        one.append((expected + cand.error(cand.made(less, its)), _added(ref, cand, less, less)))
        one.append((expected + cand.error(cand.made(1 - less, own)), divided))
        if added := _added(ref, cand, less, 1 - less):
            both.append((expected + cand.error(cand.made(1 - less, other)), f"{divided}, and {added}"))
    return _clearest(one + both, made) or _clearest(one, made)


def _added(ref: NormFactors, cand: NormFactors, less: int, cand_less: int) -> str:
    """Returns what two norms add to variances, in words; "" for the same."""
    own, its = ref.added(less), cand.added(cand_less)
    return "" if own == its else f"adds {its} to the variance, and the reference {own}"


def _clearest(found: Sequence[tuple[float, str]], made: float) -> str:
    """Returns the words of the least error; "" where that is not far less than every other, and than what is made."""
    (best, words), *others = sorted(found) or [(math.inf, "")]
    return words if best <= min([_LEFT * made, *(error / _CLEARLY for error, _ in others)]) else ""


class _Norm(NamedTuple):
    """_Norm is a layer that may normalise groups of what it reads.

    Attributes:
        read: The position of what it normalises.
        scale: That of the scale; None without one.
        beside: What is added to the scale: 1 where its parameter is what it is more than one.
        bias: That of the bias; None without one.
        channel: The axis of the scale and the bias.
        groups: The number of groups of channels where those of an example are normalised by themselves; 0 where the
            axes say what is.
        axes: The axes over which the deviation is taken.
        centred: Whether the mean is subtracted.
        interleaved: Whether channels of a group are as far apart as there are groups, and not next to each other.
    """

    read: int
    scale: int | None
    beside: int
    bias: int | None
    channel: int
    groups: int
    axes: tuple[int, ...]
    centred: bool
    interleaved: bool = False

    @property
    def words(self) -> str:
        """What values are in one group, in words."""
        if self.groups == 1:
            return "all channels of each example"
        apart = f" that are {self.groups} apart" if self.interleaved else ""
        return f"{self.groups} groups of channels of each example{apart}" if self.groups else f"axes {[*self.axes]}"

    def factors(self, reads: Sequence[Array], value: Array) -> NormFactors | None:
        """Returns by what a value's groups are multiplied; None where the value is not made so.

        Args:
            reads: What the layer reads.
            value: What it computes.
        """
        if not self._may_make(reads, value):
            return None
        rest, scale, shifted = self._parts(reads, value)
        rest = rest - rest.mean(self.axes, keepdims=True) if self.centred else rest
        factor = _factor(rest * scale, shifted, self.axes)
        left = np.linalg.norm(shifted - factor * rest * scale)
        count = math.prod(rest.shape[axis] for axis in self.axes)
        if not left <= _ROUNDING * np.linalg.norm(value) or not np.all(factor > 0) or count < _FEWEST:
            return None
        variance, size = np.square(rest).mean(self.axes), np.sqrt(np.square(rest * scale).sum(self.axes))
        found = NormFactors(factor=factor.reshape(variance.shape), variance=variance, size=size, count=count)
        many = variance.size >= _FEWEST_GROUPS or bool(np.all(np.abs(found.factor * np.sqrt(variance) - 1) <= _UNIT))
        return found if many and found.are_of_variances() else None

    def other_numbers(self, reads: Sequence[Array], value: Array) -> str:
        """Returns by what other numbers each group of a value is normalised, in words; "" where it is by none.

        Args:
            reads: What the layer reads.
            value: What it computes.
        """
        read, scale, shifted = self._parts(reads, value)
        if np.any(scale == 0):
            return ""
        made, rest = (each - each.mean(self.axes, keepdims=True) for each in (shifted / scale, read))
        factor = _factor(rest, made, self.axes)
        if not np.linalg.norm((made - factor * rest) * scale) <= _ROUNDING * np.linalg.norm(value):
            return ""
        if not np.all(factor > 0):  # another value is normalised, as one with rows of zeros
            return ""
        own = factor * np.sqrt(np.square(rest).mean(self.axes, keepdims=True))
        if np.ptp(own) <= NEARLY * np.abs(own).max():  # its own deviation, by another scale
            return ""
        return "other numbers" if self.groups or 0 not in self.axes else "other numbers, as by running statistics"

    def _may_make(self, reads: Sequence[Array], value: Array) -> bool:
        """Returns whether a few places of the value are those of what is read, times one number and plus another one.

        Most of what a layer may be is refuted by these, in a small part of the time.
        """
        few = tuple(slice(None if axis == self.channel else _FEW_PLACES) for axis in range(value.ndim))
        some = [each[few].astype(np.float64) if each.shape == value.shape else each for each in reads]
        read, scale, made = self._parts(some, value[few].astype(np.float64))
        one = read * scale
        one = one - scale * ((one * scale).sum(self.axes, keepdims=True) / _positive(np.square(scale), self.axes))
        left = made - scale * ((made * scale).sum(self.axes, keepdims=True) / _positive(np.square(scale), self.axes))
        left = left - one * ((left * one).sum(self.axes, keepdims=True) / _positive(np.square(one), self.axes))
        return bool(np.linalg.norm(left) <= _MAY_MAKE * np.linalg.norm(value[few]))

    def _parts(self, reads: Sequence[Array], value: Array) -> tuple[Array, Array, Array]:
        """Returns what is read, the scale, and the value without the bias, with the groups of channels as an axis."""
        read = reads[self.read]
        along = [-1 if axis == self.channel else 1 for axis in range(read.ndim)]
        scale = np.ones(1) if self.scale is None else reads[self.scale] + self.beside
        shifted = value if self.bias is None else value - reads[self.bias].reshape(along)
        wide = np.broadcast_to(scale.reshape(along if scale.size > 1 else [1] * read.ndim), read.shape)
        if not self.groups:
            return read, wide, shifted
        moved = (np.moveaxis(each, self.channel, 1) for each in (read, wide, shifted))
        if self.interleaved:
            moved = (each.reshape(len(each), -1, self.groups, *each.shape[2:]).swapaxes(1, 2) for each in moved)
        one, two, three = (each.reshape(len(each), self.groups, -1) for each in moved)
        return one, two, three


def _positive(squares: Array, axes: tuple[int, ...]) -> Array:
    """Returns the sum of squares of each group; 1 where it is zero."""
    found = squares.sum(axes, keepdims=True)
    return np.where(found > 0, found, 1)


def _factor(read: Array, value: Array, axes: tuple[int, ...]) -> Array:
    """Returns by what each group is multiplied; 1 where it is zero."""
    squares = np.square(read).sum(axes, keepdims=True)
    return np.where(squares > 0, (read * value).sum(axes, keepdims=True) / np.where(squares > 0, squares, 1), 1)


def _norms(reads: Sequence[Array], shape: tuple[int, ...]) -> Iterator[_Norm]:
    """Yields the norms that may make a value of a shape of what is read."""
    vectors = [at for at, each in enumerate(reads) if each.ndim == 1]
    for read in (at for at, each in enumerate(reads) if each.shape == shape and each.ndim > 1):
        for channel in dict.fromkeys((len(shape) - 1, 1)):
            fitting = [at for at in vectors if reads[at].size == shape[channel]]
            space = tuple(axis for axis in range(len(shape)) if axis != channel)
            divisors = [each for each in range(1, min(shape[channel], MOST_GROUPS) + 1) if shape[channel] % each == 0]
            whole = [(0, (channel,), False), (0, space, False)]
            grouped = [(each, (2,), False) for each in divisors] if len(shape) > 2 and fitting else []
            # Groups of one channel, or of all of them, are the same either way.
            others = [(each, axes, True) for each, axes, _ in grouped if 1 < each < shape[channel]]
            for scale, bias in dict.fromkeys(itertools.permutations((*fitting, None, None), 2)):
                for (groups, axes, apart), centred in itertools.product((*whole, *grouped, *others), (True, False)):
                    for beside in (0,) if scale is None else (0, 1):
                        yield _Norm(read, scale, beside, bias, channel, groups, axes, centred, apart)
