"""`TermsBefore` has the values of a program that may be added up before a layer reads them.

The graph states from which values with a counterpart a layer computes, also where a scope around a residual sum, which
one of the programs has alone, is between. Only where these make up nothing, the values nearest before are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources
from gradscope.comparison.layout.layouts import Shape, usually_arranged
from gradscope.comparison.layout.spreading import spread_shapes
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of, split_key

#: The most terms that are tried: of those that the graph states, and of those that are near.
_MOST_STATED: Final = 32
_MOST_NEAR: Final = 8

#: The families of terms: a table of positions is added as it is.
_TERMS: Final = (ACTIVATION, INPUT, PARAM)

#: A value by its key, in the shape of what is made of it.
Term = tuple[str, Array]


class TermsBefore:
    """TermsBefore finds the terms.

    Args:
        source: The dump of the program.
        paired: The owners of its values and parameters that have a counterpart.
    """

    def __init__(self, source: DumpSource, paired: Collection[str]) -> None:
        self._source, self._tensors = source, FloatTensors(source)
        self._entries = {
            key_of(each.family, each.name): each
            for each in source.manifest.entries
            if each.family in _TERMS and each.alias_of is None and each.absent is None
        }
        inputs = {key for key in self._entries if split_key(key)[0] == INPUT}
        self._paired = frozenset({*paired, *inputs})
        self._sources = NearestKeys(forward_sources(source), self._paired)

    def have_counterparts(self, keys: Collection[str]) -> bool:
        """Returns whether all of some values and parameters have a counterpart, or are inputs."""
        return self._paired.issuperset(keys)

    def of(self, key: str, shape: Shape) -> Iterator[list[Term]]:
        """Yields the terms that the graph states, and then those that are near, the nearest first.

        Args:
            key: The key of what is computed of them.
            shape: Its shape.
        """
        owner = self._source.resolve(key)
        stated = self._ordered({each for each in self._sources.behind(owner) if each in self._entries})
        ways = ((each, way) for each, tensor in stated for way in _in_shape(tensor, shape))
        yield [*itertools.islice(ways, _MOST_STATED)]
        index = self._source.entry(owner).site.index
        near = (name for name, each in self._entries.items() if each.family != ACTIVATION or each.site.index < index)
        fitting = self._ordered({name for name in near if spread_shapes(self._entries[name].shape, shape)})
        spread = ((each, way) for each, tensor in fitting for way in _spread(tensor, shape))
        yield [*itertools.islice(spread, _MOST_NEAR)]

    def _ordered(self, keys: Collection[str]) -> Iterator[Term]:
        """Yields values, those that are computed last first, and then parameters."""
        entries = ((key, self._entries[key]) for key in self._entries if key in keys)
        ordered = sorted(entries, key=lambda each: (each[1].family == PARAM, -each[1].site.index))
        known = ((key, tensor) for key, _ in ordered if (tensor := self._tensors.tensor(key)) is not None)
        return ((key, tensor) for key, tensor in known if tensor.any())


def _in_shape(tensor: Array, shape: Shape) -> list[Array]:
    """Returns a value in a shape in each usual way; none where it is none of as many elements, and does not spread."""
    return usually_arranged(tensor, shape) if tensor.size == math.prod(shape) else _spread(tensor, shape)


def _spread(tensor: Array, shape: Shape) -> list[Array]:
    return [np.broadcast_to(tensor.reshape(each), shape) for each in spread_shapes(tensor.shape, shape)]
