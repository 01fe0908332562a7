"""`function_read` finds which function of a value a layer reads, by the power of what it reads.

A dump has the root mean square of all that a layer reads, also where no tensor has that: of an activation function
directly before a recurrent cell, or before a convolution whose kernel is normalised, no product of a kernel shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.dump.manifest.layer_graph import layers_around
from gradscope.dump.manifest.manifest import Layer

#: The relative error up to which a root mean square is that of a function of a value: it is summed in float32.
_FITS: Final = 1e-5

#: How far a slope may be from one of two digits.
_ROUND: Final = 1e-4

#: The most elements of a value of which functions are tried, and the fewest whose power shows one.
_MOST: Final = 1 << 20
_FEWEST: Final = 16


class FunctionRead(NamedTuple):
    """FunctionRead has a function of a value that a layer reads: its words, and the root mean square of the result."""

    words: str
    rms: float

    def is_other_than(self, other: FunctionRead) -> bool:
        """Returns whether another function of the value has another power."""
        return self.words != other.words and abs(self.rms - other.rms) > 2 * _FITS * self.rms


def function_read(layers: Sequence[Layer], layer: Layer, value: Array) -> FunctionRead | None:
    """Returns the function of a value that a layer reads; None where none is known to have the power of that.

    A layer that reads the value itself may have the function inside it, and says nothing either.

    Args:
        layers: The layers of the program.
        layer: The layer. What an iteration reads, the loop around it reads as a whole.
        value: The value, of both programs.
    """
    if not _FEWEST <= value.size <= _MOST:
        return None
    around = layers_around(layer, {each.path: each for each in layers})
    rms = next((each.rms["in"] for each in (layer, *around) if _reads_as_many(each, value)), math.nan)
    if not rms > 0 or _error(value, rms) <= _FITS:
        return None
    errors = {words: _error(function(value), rms) for words, function in _functions(value, rms).items()}
    words = min(errors, key=errors.__getitem__)
    return FunctionRead(words, rms) if errors[words] <= _FITS else None


def _reads_as_many(layer: Layer, value: Array) -> bool:
    return layer.elements.get("in") == value.size and "in" in layer.rms


def _functions(value: Array, rms: float) -> Mapping[str, Callable[[Array], Array]]:
    """Returns the functions that may be applied, with the leaky_relu of the slope that the power shows."""
    leaky = {
        f"leaky_relu of slope {slope:g}": lambda x, slope=slope: np.where(x > 0, x, slope * x)
        for slope in _slopes(value, rms)
    }
    return {**leaky, **ELEMENTWISE}


def _slopes(value: Array, rms: float) -> Iterator[float]:
    """Yields the slope at negative values with which a value has a power, where it is one that is written so."""
    above, below = (float(np.square(value[side]).sum()) for side in (value > 0, value < 0))
    rest = rms * rms * value.size - above
    if below > 0 and 0 < rest < below:
        slope = math.sqrt(rest / below)
        if abs(slope - round(slope, 2)) <= _ROUND and round(slope, 2) > 0:
            yield round(slope, 2)


def _error(value: Array, rms: float) -> float:
    """Returns how far a value's root mean square is from another, relative to that."""
    return abs(float(np.sqrt(np.square(value).mean())) / rms - 1)
