"""`NormPairs` tells that both values of a pair are of one norm, whatever of their difference the next norm undoes.

A norm that reads another one takes no notice of its epsilon, nor of any number by which it multiplies a channel. Two
norms with the same parameters, that read the same, return one value if they compute the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.placing.paired_inputs import PairedInputs
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key

#: The most elements of a value, and the fewest of a group, that are looked at.
_MOST_ELEMENTS: Final = 1 << 22
_FEWEST: Final = 3

#: Between which numbers one norm is a multiple of the other: as large an epsilon as the variance halves a value.
_LEAST, _MOST = 0.5, 2.0


class NormPairs:
    """NormPairs knows the layers of two programs that have vectors alone for parameters.

    Args:
        dumps: The dumps.
        pairing: The pairs that are not only suggested by their places.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._inputs, self._dumps = PairedInputs(dumps, pairing), dumps
        self._params = {each.ref: each.recipe.keys for each in pairing.matched if split_key(each.ref)[0] == PARAM}
        # A part comes after its composite, and is more exact.
        self._makers = [
            {key_of(ACTIVATION, name): layer for layer in source.manifest.layers for name in layer.outputs}
            for source in (dumps.ref, dumps.cand)
        ]

    def are_of_one(self, match: Match, tolerance: float | None) -> bool:
        """Returns whether both values are of norms with the same parameters, and multiples of each other by group.

        Args:
            match: A pair of activations, which are computed from nothing that differs.
            tolerance: The largest relative error.
        """
        own, others = self._makers[0].get(match.ref), self._makers[1].get(match.cand)
        if own is None or others is None or len(match.recipe.keys) > 1 or not self._inputs.share(match.ref, match.cand):
            return False
        vectors = self._vectors(own)
        if not vectors or {key for each in vectors for key in self._params.get(each, ("",))} != {
            key_of(PARAM, name) for name in others.params
        }:
            return False
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        if one is None or other is None or one.shape != other.shape or not 1 < one.size <= _MOST_ELEMENTS:
            return False
        axes = [axis for axis in dict.fromkeys((one.ndim - 1, 1)) if axis < one.ndim]
        return any(_are_multiples(one, other, axis, tolerance or 0.0) for axis in axes)

    def _vectors(self, layer: Layer) -> list[str]:
        """Returns the keys of a layer's parameters; none where one of them is no vector."""
        keys = [key_of(PARAM, name) for name in layer.params]
        known = [each for each in keys if each in self._params and len(self._dumps.ref.entry(each).shape) == 1]
        return known if len(known) == len(keys) else []


def _are_multiples(one: Array, other: Array, axis: int, tolerance: float) -> bool:
    """Returns whether each channel of a value is a multiple near to one of that of another, but for a constant."""
    channels, others = (np.moveaxis(each, axis, 0).reshape(each.shape[axis], -1) for each in (one, other))
    if channels.shape[1] < _FEWEST:
        return False
    rest, its = (each - each.mean(1, keepdims=True) for each in (channels, others))
    squares = np.square(rest).sum(1)
    factors = np.divide((rest * its).sum(1), squares, out=np.ones_like(squares), where=squares > 0)
    left = np.linalg.norm(its - factors[:, None] * rest)
    return bool(left <= tolerance * np.linalg.norm(its) and (factors > _LEAST).all() and (factors < _MOST).all())
