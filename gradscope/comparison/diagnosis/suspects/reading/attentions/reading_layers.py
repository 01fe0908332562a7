"""A `ReadingLayer` is a dense layer, or a convolution with a window of one, that may read an attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention import Attention, Values
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention_parts import Positions
from gradscope.comparison.diagnosis.suspects.reading.attentions.masks import Scored
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered

#: The relative error up to which an output is made of an attention.
_FITS: Final = 1e-4

#: The most examples, and elements of one of them and of its scores, of which attentions are computed.
_MOST_EXAMPLES: Final = 2
_MOST_ELEMENTS: Final = 1 << 17
_MOST_SCORES: Final = 1 << 21

#: Of how many positions of one example, and of how many features, an attention has to make the output before it is
#: computed of all.
_FEW: Final = 4
_FEW_FEATURES: Final = 32

#: How often a scale is corrected at most, how far its logarithm moves at most in one step, and when it has arrived; and
#: by how much it moves for a derivative.
_CORRECTIONS: Final = 30
_FARTHEST: Final = 1.0
_ARRIVED: Final = 1e-9
_MOVE: Final = 1e-6


class Dense(NamedTuple):
    """A `Dense` has the parameters of a layer that makes each position of its output of that of what it reads."""

    positions: Positions
    bias: Array | float


def dense_of(params: Sequence[Recovered]) -> tuple[Dense, Dense] | None:
    """Returns the parameters of a layer in both programs; None for another layer.

    Args:
        params: Its parameters.
    """
    kernels, biases = [each for each in params if each.own.ndim > 1], [each for each in params if each.own.ndim == 1]
    if len(kernels) != 1 or len(biases) > 1:
        return None
    own, other = map(Positions.of_kernel, kernels[0])
    bias = biases[0] if biases else (0.0, 0.0)
    return None if own is None or other is None else (Dense(own, bias[0]), Dense(other, bias[1]))


class ReadingLayer(NamedTuple):
    """A `ReadingLayer` has what an attention may be of, and the layer that reads it.

    Attributes:
        values: The query, the key and the value, or these packed as one.
        biases: What may be added to scores.
        masks: What may mask them.
        dense: The layer's parameters.
        output: What it computes.
    """

    values: Values
    biases: Scored
    masks: Scored
    dense: Dense
    output: Array

    def fitting(self, tried: Iterable[Attention]) -> Iterator[Attention]:
        """Yields those of some attentions that make the output.

        Args:
            tried: The attentions.
        """
        few = self._few()
        for attention in tried:
            if self._may_be(attention) and self._makes(attention, few) and self._makes(attention, None):
                yield attention

    def scaled(self, known: Attention) -> Attention | None:
        """Returns an attention with the scale by which it makes the output; None where it does so by none, or its own.

        The scale follows by the method of Gauss and Newton, from the known one on.

        Args:
            known: The attention with another scale.
        """
        if not self._may_be(known) or next(self.fitting([known]), None) is not None:
            return None
        few = self._few()
        for number in range(len(self._left(known, few))):
            scale = known.scale
            for _ in range(_CORRECTIONS):
                left, moved = (self._left(known._replace(scale=each), few) for each in (scale, scale * (1 + _MOVE)))
                slope = (moved[number] - left[number]).ravel() / _MOVE
                size = float(slope @ slope)
                step = -float(slope @ left[number].ravel()) / size if size else 0.0
                scale *= float(np.exp(np.clip(step, -_FARTHEST, _FARTHEST)))
                if abs(step) <= _ARRIVED:
                    break
            if found := next(self.fitting([known._replace(scale=scale)]), None):
                return found
        return None

    def _few(self) -> Array:
        count = self.dense.positions.of(self.output).shape[1]
        return np.unique(np.linspace(0, count - 1, _FEW).astype(np.intp))

    def _may_be(self, attention: Attention) -> bool:
        """Returns whether an attention fits the layer, and is of few elements."""
        _, count, features = self.dense.positions.of(self.output).shape
        scores = attention.heads * count * max(each.shape[1] for each in self.values)
        few = max(each[0].size for each in self.values) <= _MOST_ELEMENTS and scores <= _MOST_SCORES
        return few and np.size(self.dense.bias) in (1, features)

    def _makes(self, attention: Attention, queries: Array | None) -> bool:
        """Returns whether an attention makes the output, or a part of it at some positions."""
        made = np.linalg.norm(self._made(queries))
        return any(np.linalg.norm(each) <= _FITS * made for each in self._left(attention, queries))

    def _made(self, queries: Array | None) -> Array:
        """Returns what the layer makes of the attention, or of a part of it at some positions."""
        if queries is None:
            return self.dense.positions.of(self.output)[:_MOST_EXAMPLES] - self.dense.bias
        return (self.dense.positions.of(self.output)[:1] - self.dense.bias)[:, queries, :_FEW_FEATURES]

    def _left(self, attention: Attention, queries: Array | None) -> list[Array]:
        """Returns what an attention leaves of the output, by the kernel as it is and transposed, where these fit."""
        some = slice(_MOST_EXAMPLES if queries is None else 1)
        read = attention.of([each[some] for each in self.values], self.masks, self.biases, queries)
        if read is None:
            return []
        features = slice(None if queries is None else _FEW_FEATURES)
        matrix, shape = self.dense.positions.matrix, (read.shape[-1], self.dense.positions.of(self.output).shape[-1])
        turned = (each[:, features] for each in (matrix, matrix.T) if each.shape == shape)
        return [read @ each - self._made(queries) for each in turned]
