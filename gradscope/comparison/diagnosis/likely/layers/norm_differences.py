"""`norm_difference` tells in what the norms of two programs differ that read the same.

A norm multiplies what it reads, less the mean, by one number for each group of values, as for a channel of a batch:
`scale / sqrt(variance + epsilon)`. The number is found by the values, and with the variance it says what is added to
that, and by how many values that is divided. A norm whose numbers are not those of what it reads has other statistics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The relative error up to which a value is that of a norm.
_ROUNDING: Final = 1e-5

#: The relative error up to which its factors are those of the variances.
_NEARLY: Final = 1e-4

#: The share of the difference that is left where a norm is known well enough, and that its numbers make at least.
_LEFT: Final = 0.1
_MOST: Final = 0.9

#: How many times worse every other explanation has to be.
_CLEARLY: Final = 3

#: The largest number of elements of a value that is looked at, and the most groups of channels.
_MOST_ELEMENTS: Final = 1 << 18
_MOST_GROUPS: Final = 64

#: The fewest values of a group that say anything, and the fewest groups that tell a number which is added to variances
#: from one that they are multiplied by.
_FEWEST: Final = 4

#: What norms add to a variance most often.
_USUAL: Final = tuple(10.0**exponent for exponent in range(-12, 1))


def norm_difference(values: tuple[Array, Array], reads: Sequence[tuple[Array, Array]]) -> str:
    """Returns a clause about how the candidate's norm differs from the reference's; "" where that is not known.

    Args:
        values: What both compute, in the layout of the reference.
        reads: What both read, the parameters among that.
    """
    ref, cand = values
    if not 1 < ref.size <= _MOST_ELEMENTS:
        return ""
    one, other = (_found([pair[side] for pair in reads], value) for side, value in enumerate(values))
    if one is not None and other is not None:
        if words := _of_groups(one[0], other[0]):
            return words
        return _of_factors(one[1], other[1], float(np.linalg.norm(cand - ref)))
    what = "the mean and the variance of what it reads"
    if one is not None and (others := one[0].other_numbers([pair[1] for pair in reads], cand)):
        return f"normalises by {others}, and the reference by {what}"
    if other is not None and (others := other[0].other_numbers([pair[0] for pair in reads], ref)):
        return f"normalises by {what}, and the reference by {others}"
    return ""


def is_norm(reads: Sequence[Array], value: Array) -> bool:
    """Returns whether a value is that of a norm.

    Args:
        reads: What the layer reads, its parameters among that.
        value: What it computes.
    """
    return 1 < value.size <= _MOST_ELEMENTS and _found(reads, value) is not None


def _found(reads: Sequence[Array], value: Array) -> tuple[_Norm, _Factors] | None:
    """Returns the norm that makes a value of what is read, and by what it multiplies; None where none does."""
    found = ((norm, norm.factors(reads, value)) for norm in _norms(reads, value.shape))
    return next(((norm, factors) for norm, factors in found if factors is not None), None)


def _of_groups(ref: _Norm, cand: _Norm) -> str:
    """Returns what values two norms have in one group, in words; "" where they have the same, and subtract alike."""
    if (ref.groups, ref.interleaved, ref.axes) != (cand.groups, cand.interleaved, cand.axes):
        return f"normalises over {cand.words}, and the reference over {ref.words}"
    if ref.centred is cand.centred:
        return ""
    return (
        "subtracts the mean, and the reference does not"
        if cand.centred
        else "does not subtract the mean, and the reference does"
    )


def _of_factors(ref: _Factors, cand: _Factors, difference: float) -> str:
    """Returns what makes the factors of two norms differ, in words; "" where that is not clear."""
    made = ref.error(cand.factor)
    if made < _MOST * difference:
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


def _added(ref: _Factors, cand: _Factors, less: int, cand_less: int) -> str:
    """Returns what two norms add to variances, in words; "" for the same."""
    own, its = ref.added(less), cand.added(cand_less)
    return "" if own == its else f"adds {its} to the variance, and the reference {own}"


def _clearest(found: Sequence[tuple[float, str]], made: float) -> str:
    """Returns the words of the least error; "" where that is not far less than every other, and than what is made."""
    (best, words), *others = sorted(found) or [(math.inf, "")]
    return words if best <= min([_LEFT * made, *(error / _CLEARLY for error, _ in others)]) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """_Factors has by what a norm multiplies each group of values, with what that is made of.

    Attributes:
        factor: By what it multiplies them, for each group, without the scale.
        variance: Their mean square.
        size: The l2 norm of what is multiplied, for each group.
        count: The number of values in a group.
    """

    factor: Array
    variance: Array
    size: Array
    count: int

    def epsilon(self, less: int) -> float:
        """Returns what is added to the variances.

        Args:
            less: By how much less than the number of values the variances are divided.
        """
        weights = np.square(self.size) * self.factor**6  # an error of the sum makes one of the value by this, squared
        apart = 1 / np.square(self.factor) - self._variances(less)
        return max(0.0, float((weights * apart).sum() / weights.sum()))

    def added(self, less: int) -> str:
        """Returns what is added to the variances in words: a usual number, where that is as near.

        Args:
            less: As above.
        """
        epsilon = self.epsilon(less)
        most = _CLEARLY * self.error(self.made(less, epsilon))
        if self.error(self.made(less, 0.0)) <= most:
            return "next to nothing"
        near = (each for each in _USUAL if self.error(self.made(less, each)) <= most)
        return brief(min(near, key=lambda each: abs(math.log(each / epsilon)), default=epsilon))

    def made(self, less: int, epsilon: float) -> Array:
        """Returns the factors of a norm.

        Args:
            less: As above.
            epsilon: What is added to the variances.
        """
        return 1 / np.sqrt(self._variances(less) + epsilon)

    def are_of_variances(self) -> bool:
        """Returns whether the factors are those of the variances and one number."""
        most = _NEARLY * float(np.linalg.norm(self.size * self.factor))
        return any(self.error(self.made(less, self.epsilon(less))) <= most for less in (0, 1))

    def error(self, factor: Array) -> float:
        """Returns how far a value is away with other factors.

        Args:
            factor: The factors.
        """
        return float(np.linalg.norm(self.size * (factor - self.factor)))

    def _variances(self, less: int) -> Array:
        return self.variance * (self.count / (self.count - less))


class _Norm(NamedTuple):
    """_Norm is a layer that may normalise groups of what it reads.

    Attributes:
        read: The position of what it normalises.
        scale: That of the scale; None without one.
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

    def factors(self, reads: Sequence[Array], value: Array) -> _Factors | None:
        """Returns by what a value's groups are multiplied; None where the value is not made so.

        Args:
            reads: What the layer reads.
            value: What it computes.
        """
        rest, scale, shifted = self._parts(reads, value)
        rest = rest - rest.mean(self.axes, keepdims=True) if self.centred else rest
        factor = _factor(rest * scale, shifted, self.axes)
        left = np.linalg.norm(shifted - factor * rest * scale)
        count = math.prod(rest.shape[axis] for axis in self.axes)
        if not left <= _ROUNDING * np.linalg.norm(value) or not np.all(factor > 0) or count < _FEWEST:
            return None
        variance, size = np.square(rest).mean(self.axes), np.sqrt(np.square(rest * scale).sum(self.axes))
        found = _Factors(factor=factor.reshape(variance.shape), variance=variance, size=size, count=count)
        return found if variance.size >= _FEWEST and found.are_of_variances() else None

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
        own = factor * np.sqrt(np.square(rest).mean(self.axes, keepdims=True))
        if np.ptp(own) <= _NEARLY * np.abs(own).max():  # its own deviation, by another scale
            return ""
        return "other numbers" if self.groups or 0 not in self.axes else "other numbers, as by running statistics"

    def _parts(self, reads: Sequence[Array], value: Array) -> tuple[Array, Array, Array]:
        """Returns what is read, the scale, and the value without the bias, with the groups of channels as an axis."""
        read = reads[self.read]
        along = [-1 if axis == self.channel else 1 for axis in range(read.ndim)]
        scale = np.ones(1) if self.scale is None else reads[self.scale]
        shifted = value if self.bias is None else value - reads[self.bias].reshape(along)
        wide = np.broadcast_to(scale.reshape(along if scale.size > 1 else [1] * read.ndim), read.shape)
        if not self.groups:
            return read, wide, shifted
        moved = (np.moveaxis(each, self.channel, 1) for each in (read, wide, shifted))
        if self.interleaved:
            moved = (each.reshape(len(each), -1, self.groups, *each.shape[2:]).swapaxes(1, 2) for each in moved)
        one, two, three = (each.reshape(len(each), self.groups, -1) for each in moved)
        return one, two, three


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
            divisors = [each for each in range(1, min(shape[channel], _MOST_GROUPS) + 1) if shape[channel] % each == 0]
            whole = [(0, (channel,), False), (0, space, False)]
            grouped = [(each, (2,), False) for each in divisors] if len(shape) > 2 and fitting else []
            # Groups of one channel, or of all of them, are the same either way.
            others = [(each, axes, True) for each, axes, _ in grouped if 1 < each < shape[channel]]
            for scale, bias in dict.fromkeys(itertools.permutations((*fitting, None, None), 2)):
                for (groups, axes, apart), centred in itertools.product((*whole, *grouped, *others), (True, False)):
                    yield _Norm(read, scale, bias, channel, groups, axes, centred, apart)
