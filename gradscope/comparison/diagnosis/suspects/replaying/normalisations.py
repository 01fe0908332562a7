"""`normalisations` finds the formula of a layer that normalises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Final

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
                    normalise = partial(
                        _normalised,
                        places=(read, scale, bias),
                        channel=channel,
                        axes=axes,
                        centred=centred,
                        epsilon=epsilon,
                    )
                    if (scale is None or scale != bias) and makes(normalise(reads), value):
                        uses = tuple(at for at in (read, scale, bias) if at is not None)
                        yield Formula(words="normalisation", apply=normalise, uses=uses)


def _normalised(
    reads: Reads,
    *,
    places: tuple[int, int | None, int | None],
    channel: int,
    axes: tuple[int, ...],
    centred: bool,
    epsilon: float,
) -> Array:
    at, scale, bias = places
    read = reads[at]
    rest = read - read.mean(axes, keepdims=True) if centred else read
    made = rest / np.sqrt(np.square(rest).mean(axes, keepdims=True) + epsilon)
    shape = [-1 if axis == channel else 1 for axis in range(read.ndim)]
    made = made if scale is None else made * reads[scale].reshape(shape)
    return made if bias is None else made + reads[bias].reshape(shape)
