"""`FloatTensors` reads the floating-point tensors of one dump, and those that a layer reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.precision import dtype_class, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, INPUT, key_of, split_key

#: The largest number of elements of a tensor that is read.
_MOST_ELEMENTS: Final = 1 << 24

#: How many roundings of its dtype a product has that is computed again: factors are rounded, too, and not stored so.
_ROUNDINGS: Final = 2


class FloatTensors:
    """FloatTensors reads the floating-point tensors of one dump in float64, those that are finite and not too large.

    Args:
        source: The dump.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self._known = frozenset(source.keys())

    @property
    def is_coarse(self) -> bool:
        """Whether values of the dump have fewer digits than float32."""
        values = (each for each in self._source.manifest.entries if each.family == ACTIVATION)
        dtypes = {each.dtype for each in values if dtype_class(each.dtype) == "float"}
        return any(machine_epsilon(each) > machine_epsilon("float32") for each in dtypes)

    def tensor(self, key: str) -> Array | None:
        """Returns a tensor; None where the dump has none of that key, or none that is read."""
        if key not in self._known or not self._source.has_tensor(key):
            return None
        entry = self._source.entry(self._source.resolve(key))
        if dtype_class(entry.dtype) != "float" or not 0 < math.prod(entry.shape) <= _MOST_ELEMENTS:
            return None
        tensor = self._source.array(key).astype(np.float64)
        return tensor if np.isfinite(tensor).all() else None

    def made(self, recipe: Recipe) -> Array | None:
        """Returns what a recipe makes of tensors; None where one of them is not known.

        Args:
            recipe: The recipe, over keys of the dump.
        """
        arrays = [self.tensor(key) for key in recipe.keys]
        known = [each for each in arrays if each is not None]
        return recipe.made_of(known) if len(known) == len(arrays) else None

    def rounding(self, key: str, least: float) -> float:
        """Returns the relative error that the dtype of a tensor leaves in what is computed of it again.

        Args:
            key: The tensor's key.
            least: The error in float32, in finer dtypes, and where it holds no floating-point numbers.
        """
        dtype = self._source.entry(self._source.resolve(key)).dtype
        return max(least, _ROUNDINGS * machine_epsilon(dtype)) if dtype_class(dtype) == "float" else least

    def of_size(self, keys: Iterable[str], size: int) -> Iterator[Array]:
        """Yields those of some tensors that have a number of elements, each read when it is requested.

        Args:
            keys: The keys.
            size: The number of elements.
        """
        known = (self._source.resolve(each) for each in keys if each in self._known)
        fitting = (each for each in dict.fromkeys(known) if math.prod(self._source.entry(each).shape) == size)
        yield from (value for key in fitting if (value := self.tensor(key)) is not None)

    def read_by(self, layer: Layer) -> Iterator[Array]:
        """Yields the values that a layer reads, each once.

        Args:
            layer: The layer.
        """
        named = (key_of(family, name) for name in layer.inputs for family in (ACTIVATION, INPUT))
        stated = (each for each in layer.sources if split_key(each)[0] in (ACTIVATION, INPUT))
        owners = (self._source.resolve(each) for each in (*named, *stated) if each in self._known)
        yield from (value for key in dict.fromkeys(owners) if (value := self.tensor(key)) is not None)
