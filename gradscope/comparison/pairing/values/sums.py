"""`sums` recognises stored tensors that add up to one of the other dump, as the two biases of PyTorch's LSTM do.

The sum may be in parts, where a framework has a bias for each gate. Such tensors have no counterpart: infinitely many
terms have one sum. That the sum is right is all that there is to compare, and that the gradient with respect to each
term is that with respect to the sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import real_values
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.inference.equal_parts import assigned
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key

#: The relative rounding error of a sum of float32 tensors by which two terms are looked for.
_ROUNDING: Final = 1e-4

#: The most tensors of one shape in one layer of which every two are added.
_MOST_TERMS: Final = 8


def sums(dumps: Dumps, only_ref: Sequence[str], only_cand: Sequence[str]) -> dict[str, str]:
    """Returns why parameters need no counterpart that add up to one of the other dump, and that one.

    Args:
        dumps: The dumps.
        only_ref: Keys of the reference without a counterpart.
        only_cand: Keys of the candidate without one.

    Returns:
        Sentences by key, also of the gradients with respect to them.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    found: dict[str, str] = {}
    for holder, keys, other, terms in (
        (dumps.cand, only_cand, dumps.ref, only_ref), (dumps.ref, only_ref, dumps.cand, only_cand),
    ):  # fmt: skip
        for parts, pair in chain(_added(holder, keys, other, terms), _added_in_parts(holder, keys, other, terms)):
            if any(key in found for key in (*parts, *pair)):
                continue
            names, whole = (" and ".join(split_key(key)[1] for key in some) for some in (pair, parts))
            joined = len(parts) > 1
            found |= dict.fromkeys(parts, f"a part of the sum of {names}" if joined else f"the sum of {names}")
            found |= dict.fromkeys(pair, f"{whole} {'joined are' if joined else 'is'} the sum of {names}")
            gradient = _joined_gradient(holder, parts)
            terms_of = [_gradient(other, key) for key in pair]
            if gradient is not None and all(
                each is not None and _is_close(gradient, each, PARAM_GRAD) for each in terms_of
            ):
                same = f"the gradient of {names} is that of {whole}"
                found |= {key_of(PARAM_GRAD, split_key(key)[1]): same for key in (*parts, *pair)}
    return found


def _joined_gradient(source: DumpSource, parts: Sequence[str]) -> Array | None:
    gradients = [gradient for part in parts if (gradient := _gradient(source, part)) is not None]
    if len(gradients) < len(parts):
        return None
    return gradients[0] if len(parts) == 1 else np.concatenate(gradients)


def _added_in_parts(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """Yields parameters of one dump that joined are the sum of two of the other, which one layer has, and those two."""
    by_layer: defaultdict[tuple[str, Shape], list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(other, key), terms):
        by_layer[re.split(r"[/.](?=[^/.]*$)", key)[0], other.entry(key).shape].append(key)
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(holder, key), keys):
        by_shape[holder.entry(key).shape].append(key)
    for (_, shape), own in by_layer.items():
        for pair in combinations(own, 2) if shape and len(own) <= _MOST_TERMS else ():
            one, two = (_wide(other.array(key)) for key in pair)
            for part, singles in by_shape.items():
                count = shape[0] // part[0] if part and part[0] else 0
                if not 1 < count <= len(singles) or (part[0] * count, *part[1:]) != shape:
                    continue
                found = assigned(np.split(one + two, count), {key: holder.array(key) for key in singles})
                if found is not None and np.any(one) and np.any(two):
                    yield tuple(found[0]), pair
                    break


def _added(
    holder: DumpSource, keys: Sequence[str], other: DumpSource, terms: Sequence[str]
) -> Iterator[tuple[tuple[str], tuple[str, str]]]:
    """Yields parameters of one dump, and two of the other of the same shape that add up to each."""
    by_shape: defaultdict[Shape, list[str]] = defaultdict(list)
    for key in filter(lambda key: _is_stored(other, key), terms):
        by_shape[other.entry(key).shape].append(key)
    projected: dict[Shape, Array] = {}
    for whole in filter(lambda key: _is_stored(holder, key), keys):
        shape = holder.entry(whole).shape
        if len(by_shape[shape]) < 2:
            continue
        if shape not in projected:
            projected[shape] = np.array([_projection(other.array(key)) for key in by_shape[shape]])
        expected = holder.array(whole)
        for places in _pairs(projected[shape], _projection(expected)):
            pair = (by_shape[shape][places[0]], by_shape[shape][places[1]])
            one, two = (_wide(other.array(key)) for key in pair)
            if np.any(one) and np.any(two) and _is_close(expected, one + two, PARAM):
                yield (whole,), pair
                break


def _projection(array: Array) -> float:
    """Returns a sum of the elements with fixed weights: that of a sum of tensors is the sum of those of its terms."""
    return float(np.random.default_rng(0).normal(size=array.size) @ _wide(array).ravel())


def _pairs(projections: Array, total: float) -> Iterator[tuple[int, int]]:
    """Yields the places of two numbers that add up to a total but for rounding, the first pairs first."""
    scale = _ROUNDING * max(abs(total), float(np.abs(projections).max(initial=0.0)))
    for place, number in enumerate(projections):
        for close in np.flatnonzero(np.abs(projections[place + 1 :] + number - total) <= scale):
            yield place, place + 1 + int(close)


def _is_stored(source: DumpSource, key: str) -> bool:
    entry = source.entry(key)
    return entry.family == PARAM and source.has_tensor(key) and dtype_class(entry.dtype) == "float"


def _gradient(source: DumpSource, key: str) -> Array | None:
    gradient = key_of(PARAM_GRAD, split_key(key)[1])
    return source.array(gradient) if source.has_tensor(gradient) else None


def _is_close(one: Array, other: Array, family: str) -> bool:
    tolerance = default_tolerance(family, "float32", "float32", reduced=False)
    one, other = _wide(one), _wide(other)
    return one.shape == other.shape and bool(np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one))


def _wide(array: Array) -> Array:
    return real_values(array).astype(np.float64)
