"""`bias_between` finds the bias that one value of a pair has, and that the other program adds elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.pair_values import both, is_close, is_noticed, of_gradients
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, key_of, split_key


def bias_between(dumps: Dumps, match: Match, biases: Iterable[Match], tolerance: float) -> Match | None:
    """Returns the bias that only one value of a pair has, and that both programs add; None where there is none.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        biases: Pairs of parameters of one axis, which agree.
        tolerance: The largest relative error.
    """
    values = both(dumps, match)
    gradients = None if values is None else both(dumps, of_gradients(match))
    if values is None or gradients is None:
        return None
    one, other = values
    for axis, size in enumerate(one.shape):
        others = tuple(each for each in range(one.ndim) if each != axis)
        shift, arriving = (one - other).mean(others), [each.sum(others) for each in gradients]
        noticed = all(is_noticed(dumps, match, each, others) for each in gradients)
        spread = np.expand_dims(shift, others)
        if size < 2 or not noticed or not is_close(other + spread, one, tolerance):
            continue
        for bias in biases:
            if dumps.ref.entry(bias.ref).shape == (size,) and _is_added(dumps, bias, shift, arriving, tolerance):
                return bias
    return None


def _is_added(dumps: Dumps, bias: Match, shift: Array, arriving: Sequence[Array], tolerance: float) -> bool:
    """Returns whether a bias is what two values differ by, and has the gradient that arrives in both programs."""
    known, slopes = both(dumps, bias), both(dumps, of_gradients(bias))
    if known is None or slopes is None:
        return False
    added = is_close(known[0], shift, tolerance) or is_close(known[0], -shift, tolerance)
    return added and all(is_close(each, slope, tolerance) for each, slope in zip(arriving, slopes, strict=True))


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
    shape, name = source.entry(key).shape, split_key(key)[1]
    params = [layer.params for layer in source.manifest.layers if name in layer.outputs][-1:]  # the innermost is last
    keys = (key_of(PARAM, each) for names in params for each in names)
    biases = (source.array(each) for each in keys if each in summed and source.entry(each).shape == shape[-1:])
    return sum((np.broadcast_to(each, shape) for each in biases), start=np.zeros(shape))
