"""`ReadForms` tells that dense layers read two forms of a function of one value, which agree within the tolerance.

A port that has its activation functions in no scope has no value for them. Where its GELU is the formula by tanh, and
the reference's has the error function, the layer behind shows it: its products are those of one form in each program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.function_differences import nearest
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import PARAM, printable, split_key

#: The most rows and outputs of a layer that are computed again.
_MOST: Final = 64

#: The share of the error that is left where the form is the right one.
_LEFT: Final = 0.1

#: Both tensors of a pair, in the layout of the reference.
_Both = tuple[Array, Array]


class ReadForms:
    """ReadForms finds the forms.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def words(self, match: Match, read: Sequence[Match], error: float) -> str:
        """Returns a clause about the functions that a dense layer reads; "" where both read the same.

        Args:
            match: The pair of what the layers compute.
            read: The pairs of what that is computed from, the parameters of the layers among them.
            error: The relative error of the pair.
        """
        value = self._both(match)
        pairs = [(each, self._both(each)) for each in read]
        known = [(each, pair) for each, pair in pairs if pair is not None]
        if value is None or len(known) < len(pairs):
            return ""
        params = [pair for each, pair in known if split_key(each.ref)[0] == PARAM]
        values = [(each, pair) for each, pair in known if split_key(each.ref)[0] != PARAM]
        if len(values) != 1 or sum(each[0].ndim > 1 for each in params) != 1:
            return ""
        ((argument, both),) = values
        with np.errstate(all="ignore"):  # functions are applied to values that they are not made for
            sides = [
                _fitting(value[at], both[at], [each[at] for each in params], _LEFT * error) for at in range(len(value))
            ]
        own, other = sides
        if not own or not other or not own.keys().isdisjoint(other):
            return ""
        name = f"`{printable(split_key(argument.ref)[1])}`"
        return f"reads the {nearest(own)} of {name} in the reference, and the {nearest(other)} in the candidate"

    def _both(self, match: Match) -> _Both | None:
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else (one, other)


def _fitting(value: Array, read: Array, params: Sequence[Array], error: float) -> dict[str, float]:
    """Returns the relative errors of the functions of what is read whose products are a value, by their words."""
    kernel, *biases = sorted(params, key=lambda each: -each.ndim)
    inputs, outputs = read.shape[-1:], value.shape[-1:]
    if read.shape[:-1] != value.shape[:-1] or any(each.shape != outputs for each in biases):
        return {}
    ways = [each for each in (kernel, kernel.T) if each.shape == (*inputs, *outputs)]
    rows, columns = (np.linspace(0, size - 1, min(size, _MOST)).astype(int) for size in (value[..., 0].size, *outputs))
    made = value.reshape(-1, *outputs)[np.ix_(rows, columns)]
    argument, shift = read.reshape(-1, *inputs)[rows], sum((each[columns] for each in biases), start=np.zeros(1))
    size = max(float(np.linalg.norm(made)), 1e-300)
    errors = [
        (name, float(np.linalg.norm(function(argument) @ way[:, columns] + shift - made)) / size)
        for way in ways
        for name, function in ELEMENTWISE.items()
    ]
    return {name: each for name, each in errors if each <= error}
