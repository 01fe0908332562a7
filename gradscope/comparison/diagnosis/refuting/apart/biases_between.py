"""`bias_between` finds the bias that one value of a pair has, and that the other program adds elsewhere.

`hidden_bias` finds one that the other program does without.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.pair_values import both, is_close, is_noticed, of_gradients
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values.equality import absent_keys
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import AUX, PARAM, PARAM_GRAD, STATE, key_of, split_key

#: The largest share of a bias that rounding of the values leaves which have it.
_ROUNDED: Final = 0.1


def bias_between(dumps: Dumps, match: Match, biases: Iterable[Match], tolerance: float) -> Match | None:
    """Returns the bias that only one value of a pair has, and that both programs add; None where there is none.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        biases: Pairs of parameters of one axis, which agree.
        tolerance: The largest relative error.
    """
    for shift in _shifts(dumps, match, tolerance):
        for bias in biases:
            if dumps.ref.entry(bias.ref).shape == shift.array.shape and _is_added(dumps, match, bias, shift, tolerance):
                return bias
    return None


def hidden_bias(dumps: Dumps, match: Match, alone: Iterable[str], tolerance: float) -> str | None:
    """Returns the bias that one program alone has, and that what reads the value of a pair takes no notice of.

    A norm over the examples or positions subtracts a bias with the mean: its gradient is zero but for rounding, and the
    other program may do without it. A running mean has it, and differs without it.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        alone: The keys of the parameters that one program alone has.
        tolerance: The largest relative error.

    Returns:
        The key of the bias; None where there is none.
    """
    for shift in (each for each in _shifts(dumps, match, tolerance) if each.is_hidden):
        for source, key, sign in ((dumps.ref, match.ref, 1), (dumps.cand, match.cand, -1)):
            known = frozenset(source.keys())
            for bias in filter(known.intersection(alone).__contains__, _params_of(source, key)):
                value = FloatTensors(source).tensor(bias)
                if value is None or value.shape != shift.array.shape or _is_in_state(dumps, len(value)):
                    continue
                if shift.is_of(sign * value, tolerance):
                    return bias
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift:
    """_Shift stores what two values differ by along one axis, and the sums along it of the gradients that arrive.

    Attributes:
        array: What the reference's value has more.
        arriving: The sums of the gradients that arrive at both values.
        is_hidden: Whether what reads the values takes no notice of a bias, although gradients arrive.
        rounding: The largest error that it has from the rounding of the values.
    """

    array: Array
    arriving: Sequence[Array]
    is_hidden: bool
    rounding: float

    def is_of(self, bias: Array, tolerance: float) -> bool:
        """Returns whether it is that of a bias.

        Rounding of values in bfloat16 is relative to the values, which may be many times as large as the bias.
        """
        size = float(np.linalg.norm(bias))
        limit = max(tolerance * size, min(self.rounding, _ROUNDED * size))
        return bool(np.linalg.norm(self.array - bias) <= limit > 0)


def _shifts(dumps: Dumps, match: Match, tolerance: float) -> Iterator[_Shift]:
    """Yields what the values of a pair differ by along one axis, where both programs take notice of it or neither."""
    values = both(dumps, match)
    gradients = None if values is None else both(dumps, of_gradients(match))
    if values is None or gradients is None or not all(map(np.any, gradients)):
        return
    one, other = values
    for axis, size in enumerate(one.shape):
        others = tuple(each for each in range(one.ndim) if each != axis)
        shift, noticed = (one - other).mean(others), {is_noticed(dumps, match, each, others) for each in gradients}
        if size > 1 and len(noticed) == 1 and is_close(other + np.expand_dims(shift, others), one, tolerance):
            arriving = [each.sum(others) for each in gradients]
            rounding = tolerance * float(np.linalg.norm(one)) * (size / one.size) ** 0.5
            yield _Shift(array=shift, arriving=arriving, is_hidden=not noticed.pop(), rounding=rounding)


def _is_added(dumps: Dumps, match: Match, bias: Match, shift: _Shift, tolerance: float) -> bool:
    """Returns whether a bias is what the values of a pair differ by, and both programs add it.

    Then the gradient arrives at it in both. Where none arrives but for rounding, one of the layers has the bias, and
    the other program has it elsewhere.
    """
    known, slopes = both(dumps, bias), both(dumps, of_gradients(bias))
    if known is None or slopes is None or not any(shift.is_of(each, tolerance) for each in (known[0], -known[0])):
        return False
    if shift.is_hidden:
        inside = bias.ref in _params_of(dumps.ref, match.ref), bias.cand in _params_of(dumps.cand, match.cand)
        return inside[0] is not inside[1] and all(map(np.any, slopes))
    return all(is_close(each, slope, tolerance) for each, slope in zip(shift.arriving, slopes, strict=True))


def _is_in_state(dumps: Dumps, size: int) -> bool:
    """Returns whether a program keeps as many numbers as a bias has that are not trained, as a running mean is."""
    for source in (dumps.ref, dumps.cand):
        untrained = {split_key(key)[1] for key in absent_keys(source) if split_key(key)[0] == PARAM_GRAD}
        for entry in (each for each in source.manifest.entries if math.prod(each.shape) == size):
            if entry.family in (STATE, AUX) or (entry.family == PARAM and entry.name in untrained):
                return True
    return False


def _params_of(source: DumpSource, key: str) -> tuple[str, ...]:
    """Returns the keys of the parameters that the innermost layer which computes a value has."""
    name = split_key(source.resolve(key))[1]
    params = [layer.params for layer in source.manifest.layers if name in layer.outputs][-1:]  # the innermost is last
    return tuple(key_of(PARAM, each) for names in params for each in names)


def differ_by_biases(dumps: Dumps, match: Match, summed: Collection[str], tolerance: float) -> bool:
    """Returns whether the values of a pair differ by the biases of their layers that are terms or sums of each other.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        summed: The keys of parameters that add up to one of the other dump, and of those.
        tolerance: The largest relative error.
    """
    if not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return False
    one, other = _biases(dumps.ref, match.ref, summed), [_biases(dumps.cand, key, summed) for key in match.recipe.keys]
    value, found = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if value.shape != found.shape or not np.any(apart := one - match.recipe.made_of(other)):
        return False
    return bool(np.linalg.norm(value - found - apart) <= tolerance * np.linalg.norm(value))


def _biases(source: DumpSource, key: str, summed: Collection[str]) -> Array:
    """Returns the sum of the biases of the layer that computes a value, in the value's shape."""
    shape = source.entry(key).shape
    keys = (each for each in _params_of(source, key) if each in summed)
    biases = (source.array(each) for each in keys if source.entry(each).shape == shape[-1:])
    return sum((np.broadcast_to(each, shape) for each in biases), start=np.zeros(shape))
