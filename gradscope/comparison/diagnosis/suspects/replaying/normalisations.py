"""`normalisations` finds the formula of a layer that normalises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, makes

#: What may be added to a variance.
_EPSILONS: Final = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)


def normalisations(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formula of a layer that normalises.

    Args:
        reads: What a step reads, its parameters among that.
        value: What it computes.
    """
    vectors = [at for at, each in enumerate(reads) if each.ndim == 1]
    for read in (at for at, each in enumerate(reads) if each.shape == value.shape and each.ndim > 1):
        channels = (value.ndim - 1, 1) if value.ndim > 2 else (1,)
        for channel in channels:
            fitting = [at for at in vectors if reads[at].size == value.shape[channel]]
            space = tuple(axis for axis in range(value.ndim) if axis != channel)
            for axes, centred, epsilon in itertools.product(((channel,), space), (True, False), _EPSILONS):
                for scale, bias in itertools.product((*fitting, None), (*fitting, None)):
                    found = _Normalisation(read, scale, bias, channel, axes, centred, epsilon)
                    if (scale is None or scale != bias) and makes(found.apply(reads), value):
                        uses = tuple(at for at in (read, scale, bias) if at is not None)
                        yield Formula(words="normalisation", apply=found.apply, uses=uses, pull_back=found.pull_back)


class _Normalisation(NamedTuple):
    """_Normalisation divides what is read by its deviation, times a scale, plus a bias.

    Attributes:
        read: The position of what it normalises.
        scale: That of the scale; None without one.
        bias: That of the bias; None without one.
        channel: The axis of the scale and the bias.
        axes: The axes over which the deviation is taken.
        centred: Whether the mean is subtracted.
        epsilon: What is added to the variance.
    """

    read: int
    scale: int | None
    bias: int | None
    channel: int
    axes: tuple[int, ...]
    centred: bool
    epsilon: float

    def apply(self, reads: Reads) -> Array:
        """Returns the value, given all that the step reads."""
        made, _ = self._normed(reads)
        if self.scale is not None:
            made = made * self._along_channel(reads, self.scale)
        return made if self.bias is None else made + self._along_channel(reads, self.bias)

    def pull_back(self, reads: Reads, gradient: Array) -> Array:
        """Returns the gradient of what is normalised, given all that the step reads and the gradient of its value."""
        normed, deviation = self._normed(reads)
        scaled = gradient if self.scale is None else gradient * self._along_channel(reads, self.scale)
        passed = scaled - normed * (scaled * normed).mean(self.axes, keepdims=True)
        return (passed - scaled.mean(self.axes, keepdims=True) if self.centred else passed) / deviation

    def _normed(self, reads: Reads) -> tuple[Array, Array]:
        read = reads[self.read]
        rest = read - read.mean(self.axes, keepdims=True) if self.centred else read
        deviation = np.sqrt(np.square(rest).mean(self.axes, keepdims=True) + self.epsilon)
        return rest / deviation, deviation

    def _along_channel(self, reads: Reads, at: int) -> Array:
        return reads[at].reshape([-1 if axis == self.channel else 1 for axis in range(reads[self.read].ndim)])
