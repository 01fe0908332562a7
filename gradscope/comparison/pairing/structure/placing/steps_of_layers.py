"""`StepsOfLayers` tells values of other shapes apart: one is a step of a layer, and the other what a layer returns.

A program without scopes calls a step by the parameters that it uses: the rows that a bag of embeddings sums up are
called as the bag, and so is a kernel that is masked before it is used. What the layer makes of such a step follows.
"""

from __future__ import annotations

import math
from functools import cached_property

from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import Sources, before, inverted, sources_of
from gradscope.naming import ACTIVATION, INPUT, key_of, split_key
from gradscope.naming.paths import without_occurrence


class StepsOfLayers:
    """StepsOfLayers knows what is behind the steps of both programs.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = _Steps(dumps.ref), _Steps(dumps.cand)

    def are_apart(self, ref: str, cand: str) -> bool:
        """Returns whether two values of other shapes are a step of a layer and what the layer returns.

        Args:
            ref: The name of a value of the reference.
            cand: The name of a value of the candidate.
        """
        shapes = self._ref.shape(ref), self._cand.shape(cand)
        if shapes[0] is None or shapes[1] is None or (one := math.prod(shapes[0])) == (other := math.prod(shapes[1])):
            return self.mislead(ref, cand)
        return self.mislead(ref, cand) or self._ref.returns(ref, other) or self._cand.returns(cand, one)

    def mislead(self, ref: str, cand: str) -> bool:
        """Returns whether two values of other shapes are one that parameters alone make, and one that inputs do.

        Args:
            ref: The name of a value of the reference.
            cand: The name of a value of the candidate.
        """
        shapes = self._ref.shape(ref), self._cand.shape(cand)
        if shapes[0] is None or shapes[1] is None or sorted(shapes[0]) == sorted(shapes[1]):
            return False
        return self._ref.is_given(ref) is not self._cand.is_given(cand)


class _Steps:
    """_Steps knows how large the values of a program are, and what is made of them.

    Args:
        source: The dump of the program.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source, self._known = source, frozenset(source.keys())

    @cached_property
    def _sources(self) -> Sources:
        return sources_of(self._source.manifest.layers)

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        found = inverted(self._sources)
        return {key: [each for each in keys if split_key(each)[0] == ACTIVATION] for key, keys in found.items()}

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The names of values that are made without parameters."""
        layers = self._source.manifest.layers
        return frozenset(name for layer in layers if not layer.params for name in layer.outputs)

    @cached_property
    def _calls(self) -> dict[str, set[str]]:
        """The values of all layers of one name, by that name."""
        found: dict[str, set[str]] = {}
        for layer in self._source.manifest.layers:
            found.setdefault(without_occurrence(layer.path), set()).update(layer.outputs)
        return found

    def shape(self, name: str) -> Shape | None:
        """Returns the shape of a value; None where there is no such value."""
        key = key_of(ACTIVATION, name)
        return self._source.entry(key).shape if key in self._known else None

    def is_given(self, name: str) -> bool:
        """Returns whether a value is computed from parameters alone."""
        key = self._source.resolve(key_of(ACTIVATION, name))
        return key in self._sources and all(split_key(each)[0] != INPUT for each in before(self._sources, (key,)))

    def returns(self, name: str, size: int) -> bool:
        """Returns whether a value of some size is all that is made of a value, or what the layer makes that uses more.

        Args:
            name: The name of the value.
            size: The number of elements.
        """
        others = self._calls.get(without_occurrence(name), set()) - {name}
        if any(self._has_size(each, size) for each in others):
            return True
        readers = self._readers.get(self._source.resolve(key_of(ACTIVATION, name)), ())
        read = [split_key(each)[1] for each in dict.fromkeys(readers)]
        return len(read) == 1 and read[0] in self._plain and self._has_size(read[0], size)

    def _has_size(self, name: str, size: int) -> bool:
        return (shape := self.shape(name)) is not None and math.prod(shape) == size
