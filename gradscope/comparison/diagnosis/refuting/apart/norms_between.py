"""`norm_between` finds the norm that one value of a pair is of the other, where one program has it behind the layer.

A norm of rows or of channels takes no notice of a factor of what it reads, and most of none of what is added to that:
the gradient that arrives there has no part along the value, nor along ones, whatever follows. That shows that the
program which has the value without the norm has the norm behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.pair_values import both, is_close, of_gradients, with_gradients
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import printable, split_key

#: What may be added to a variance.
_EPSILONS: Final = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)

#: The relative error up to which a scale and a bias are those of the parameters.
_FITS: Final = 1e-3

#: The share of the gradient along a value, or along ones, up to which what follows takes no notice of those.
_UNNOTICED: Final = 1e-3

#: The fewest values of a group that say anything, and the most elements of a value.
_FEWEST: Final = 4
_MOST_ELEMENTS: Final = 1 << 20


class _Norm(NamedTuple):
    """_Norm divides groups of values by their deviation or length.

    Attributes:
        axes: The axes of a group.
        channel: The axis of the scale and the bias.
        centred: Whether the mean of a group is subtracted.
    """

    axes: tuple[int, ...]
    channel: int
    centred: bool

    def made_of(self, read: Array) -> Iterator[Array]:
        """Yields what it may make of what it reads, without the scale and the bias."""
        rest = read - read.mean(self.axes, keepdims=True) if self.centred else read
        power = np.square(rest).mean(self.axes, keepdims=True)
        squares = [power + epsilon for epsilon in _EPSILONS]
        squares.append(power * np.prod([read.shape[axis] for axis in self.axes]))
        # A group of zeros, as behind a rectifier, stays one.
        yield from (np.divide(rest, np.sqrt(each), where=each > 0, out=np.zeros_like(rest)) for each in squares)

    def is_behind(self, read: Array, gradient: Array) -> bool:
        """Returns whether what follows a value takes no notice of what the norm does not, given the gradient there."""
        along = [gradient * read, *([gradient] if self.centred else [])]
        return all(
            np.linalg.norm(each.sum(self.axes)) <= _UNNOTICED * np.linalg.norm(np.abs(each).sum(self.axes))
            for each in along
        )


def norm_between(dumps: Dumps, match: Match, tolerance: float, vectors: Iterable[Match]) -> Mapping[str, str] | None:
    """Returns what two values and their gradients are, of which one is a norm of the other in both programs; else None.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        tolerance: The largest relative error.
        vectors: Pairs of parameters of one axis, which agree.
    """
    values, gradients = both(dumps, match), both(dumps, of_gradients(match))
    if values is None or gradients is None or not 1 < values[0].size <= _MOST_ELEMENTS or values[0].ndim < 2:
        return None
    tensors = FloatTensors(dumps.ref)
    known = {each.ref: dumps.ref.entry(each.ref).shape[0] for each in vectors}
    for of_ref in (True, False):
        (read, value), gradient = (values, gradients[0]) if of_ref else (values[::-1], gradients[1])
        if not np.any(gradient):
            continue
        for norm in (each for each in _norms(read.shape) if each.is_behind(read, gradient)):
            own = (tensors.tensor(key) for key, size in known.items() if size == value.shape[norm.channel])
            sized = [each for each in own if each is not None]
            if any(_is_made(each, value, norm.channel, sized, tolerance) for each in norm.made_of(read)):
                argument, made = (match.ref, match.cand) if of_ref else (match.cand, match.ref)
                words = {
                    made: f"the norm of `{printable(split_key(argument)[1])}`",
                    argument: f"the value of which `{printable(split_key(made)[1])}` is the norm",
                }
                return with_gradients(words)
    return None


def _norms(shape: tuple[int, ...]) -> Iterator[_Norm]:
    """Yields the norms that may be of a value of a shape."""
    for channel in dict.fromkeys((len(shape) - 1, 1)):
        space = tuple(axis for axis in range(len(shape)) if axis != channel)
        for axes in ((channel,), space):
            if np.prod([shape[axis] for axis in axes]) >= _FEWEST:
                yield from (_Norm(axes, channel, centred) for centred in (True, False))


def _is_made(normed: Array, value: Array, channel: int, vectors: Sequence[Array], tolerance: float) -> bool:
    """Returns whether a value is what a norm makes, times a scale plus a bias that are parameters, or none."""
    if is_close(normed, value, tolerance):
        return True
    others = tuple(axis for axis in range(value.ndim) if axis != channel)
    one, other = (each - each.mean(others, keepdims=True) for each in (normed, value))
    scale = (one * other).sum(others) / np.maximum(np.square(one).sum(others), 1e-300)
    along = [-1 if axis == channel else 1 for axis in range(value.ndim)]
    bias = (value - normed * scale.reshape(along)).mean(others)
    if not is_close(normed * scale.reshape(along) + bias.reshape(along), value, tolerance):
        return False
    scales, biases = ([*vectors, np.full_like(scale, number)] for number in (1.0, 0.0))
    most = _FITS * np.linalg.norm(scale)
    return all(
        any(np.linalg.norm(found - each) <= most for each in possible)
        for found, possible in ((scale, scales), (bias, biases))
    )
