"""Both values of a pair, or both gradients, and whether what reads a value takes notice of it, or of a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.metrics.fills import fill_of
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import coarser, machine_epsilon
from gradscope.naming import gradient_key

#: How large the sum of the products of a gradient is with a value, or with ones, of the root of the sum of their
#: squares, above which what reads the value takes notice of it: about 1, whatever the size, and more where all push one
#: way. Behind norms it was at most 3e-4 in float32, and 15 roundings in bfloat16.
_NOTICED: Final = 1e-3
_ROUNDINGS: Final = 20

#: The relative error up to which elements in another order are the same.
_REARRANGED: Final = 1e-5

#: The largest relative error of a difference that a sum carries on, which has the rounding of the sum.
_CARRIED: Final = 0.05


def both(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both tensors of a pair in the layout of the reference; None where there are none of one shape."""
    one, other = FloatTensors(dumps.ref).tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    return None if one is None or other is None or one.shape != other.shape else (one, other)


def are_rearranged(dumps: Dumps, match: Match) -> bool:
    """Returns whether both values have the same elements, but for rounding, in another order; a constant has none."""
    values = both(dumps, match)
    if values is None or not values[0].size or values[0].min() == values[0].max():
        return False
    one, other = (np.sort(each, axis=None) for each in values)
    return bool(np.linalg.norm(one - other) <= _REARRANGED * np.linalg.norm(one))


def is_noticed(dumps: Dumps, match: Match, products: Array, axes: tuple[int, ...] | None = None) -> bool:
    """Returns whether the sums of the products of a gradient, of a pair of values, are more than its rounding."""
    rounding = machine_epsilon(coarser(dumps.ref.entry(match.ref).dtype, dumps.cand.entry(match.cand).dtype))
    least = max(_NOTICED, _ROUNDINGS * rounding)
    return bool(np.linalg.norm(products.sum(axes)) > least * np.linalg.norm(products))


def is_close(found: Array, expected: Array, tolerance: float) -> bool:
    """Returns whether a tensor is the expected one, but for a relative error."""
    error = np.linalg.norm(found - expected)
    # What a mask writes is looked for only where the rest could be close: most tensors are not.
    return bool(error <= tolerance * np.linalg.norm(expected) and error <= tolerance * norm_beside_fill(expected))


def norm_beside_fill(array: Array) -> float:
    """Returns the norm of the elements that no mask writes, of all where none does."""
    fill = fill_of([array.reshape(-1)]) if array.dtype.kind == "f" else None
    return float(np.linalg.norm(array if fill is None else array[array != fill]))


def carries_difference(dumps: Dumps, match: Match, reader: Match) -> bool:
    """Returns whether what reads a value differs by what the value differs by, as the sum of a residual connection.

    Such a sum may be so much larger than the value that its relative error is small.

    Args:
        dumps: The dumps of the pairs.
        match: The pair of the value.
        reader: The pair of what reads it.
    """
    if dumps.ref.entry(match.ref).shape != dumps.ref.entry(reader.ref).shape:
        return False
    values, behind = both(dumps, match), both(dumps, reader)
    if values is None or behind is None:
        return False
    difference = values[1] - values[0]
    return bool(np.any(difference)) and is_close(behind[1] - behind[0], difference, _CARRIED)


def of_gradients(match: Match) -> Match:
    """Returns the pair of the gradients of a pair."""
    recipe = replace(match.recipe, keys=tuple(map(gradient_key, match.recipe.keys)))
    return replace(match, ref=gradient_key(match.ref), recipe=recipe)


def with_gradients(words: Mapping[str, str]) -> dict[str, str]:
    """Returns what values are, in words, by their keys, with what that makes of their gradients."""
    return {**words, **{gradient_key(key): f"its value is {what}" for key, what in words.items()}}
