"""`EvaluatedNorms` tells what two batch norms in evaluation add to their running variances.

Such a norm is affine in what it reads, channel by channel: `scale / sqrt(variance + epsilon)` is its slope, where the
variance is among the layer's state. The slopes are found by the values, and with the state they say what is added.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.norms.norm_factors import NormFactors
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, STATE, key_of
from gradscope.naming.paths import without_occurrence

#: The relative error up to which a value is affine in what its layer reads.
_ROUNDING: Final = 1e-5

#: The share of the difference that is left where what is added explains it.
_LEFT: Final = 0.1

#: The fewest channels that tell what is added from a factor.
_FEWEST: Final = 4

#: The largest number of elements of a value that is looked at.
_MOST_ELEMENTS: Final = 1 << 22

#: A running variance is what it is, whatever number of values it is of.
_ANY_COUNT: Final = 1 << 40


class EvaluatedNorms:
    """EvaluatedNorms tells how batch norms with running statistics differ.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._tensors = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._states = _states_by_value(dumps.ref), _states_by_value(dumps.cand)
        self._dumps = dumps

    def words(self, match: Match, values: tuple[Array, Array], reads: Sequence[tuple[Array, Array]]) -> str:
        """Returns a clause about what the candidate's norm adds to a running variance; "" where that is not known.

        Args:
            match: The pair of the values.
            values: What both compute, in the layout of the reference.
            reads: What both read, the parameters among that.
        """
        if not 1 < values[0].size <= _MOST_ELEMENTS:
            return ""
        keys = self._dumps.ref.resolve(match.ref), self._dumps.cand.resolve(match.cand)
        found: list[NormFactors] = []
        stored = [
            [each for key in states.get(owner, ()) if (each := tensors.tensor(key)) is not None]
            for tensors, states, owner in zip(self._tensors, self._states, keys, strict=True)
        ]
        for side in (0, 1):
            # A port may have the statistics as constants of its code, of which its dump has nothing.
            norms = _norms([pair[side] for pair in reads], values[side], stored[side] or stored[1 - side])
            # Where a mean fits as well, it is not the variance: far more would be added to that.
            found += sorted(norms, key=lambda each: each.epsilon(0))[:1]
        if len(found) < len(keys):
            return ""
        ref, cand = found
        own, its = ref.added(0), cand.added(0)
        left, made = (cand.error(cand.made(0, each.epsilon(0))) for each in (cand, ref))
        return "" if own == its or left > _LEFT * made else f"adds {its} to the variance, and the reference {own}"


def _norms(reads: Sequence[Array], value: Array, states: Sequence[Array]) -> Iterator[NormFactors]:
    """Yields the norms of what is read that make a value, each with one of some states as its variance."""
    for read in (each for each in reads if each.shape == value.shape and each.ndim > 1):
        for axis in dict.fromkeys((1, read.ndim - 1)):
            channels = read.shape[axis]
            vectors = [each.reshape(-1) for each in reads if each.size == channels and each is not read]
            variances = [each.reshape(-1) for each in states if each.size == channels and each.min() >= 0]
            if channels < _FEWEST or not variances:
                continue
            own, its = (np.moveaxis(each, axis, -1).reshape(-1, channels) for each in (read, value))
            rest, shifted = own - own.mean(0), its - its.mean(0)
            slope = (rest * shifted).sum(0) / np.square(rest).sum(0)
            if not np.linalg.norm(shifted - slope * rest) <= _ROUNDING * np.linalg.norm(its):
                continue
            for scale, variance in itertools.product((*vectors, np.ones(channels)), variances):
                found = _factors(slope, scale, variance, np.sqrt(np.square(rest).sum(0)))
                if found is not None and found.are_of_variances():
                    yield found


def _factors(slope: Array, scale: Array, variance: Array, spread: Array) -> NormFactors | None:
    """Returns by what a norm multiplies each channel; None where that is no factor."""
    used = scale != 0
    factor = slope[used] / scale[used]
    if np.count_nonzero(used) < _FEWEST or not np.all(factor > 0):
        return None
    size = spread[used] * np.abs(scale[used])
    return NormFactors(factor=factor, variance=variance[used], size=size, count=_ANY_COUNT)


def _states_by_value(source: DumpSource) -> Mapping[str, Sequence[str]]:
    """Returns the keys of the state of the layers that make values, by the owners of the values."""
    by_scope: defaultdict[str, list[str]] = defaultdict(list)
    for name in (each.name for each in source.manifest.entries if each.family == STATE):
        parts = name.split("/")
        # Collections are around the path of a layer, and frameworks have scopes of their own inside it.
        for first, last in itertools.combinations(range(len(parts)), 2):
            by_scope["/".join(parts[first:last])].append(key_of(STATE, name))
    known = frozenset(source.keys())
    return {  # a part comes after its composite, and is more exact
        source.resolve(key): by_scope[scope]
        for layer in source.manifest.layers
        if (scope := without_occurrence(layer.path)) in by_scope
        for key in (key_of(ACTIVATION, name) for name in layer.outputs)
        if key in known
    }
