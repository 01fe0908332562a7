"""`with_norm_inputs` tells what a norm reads from what it makes of that before it scales it.

A program without scopes has an entry for each line of a norm. The last one alone uses its parameters, and reads values
that are divided already; the layer of another program reads what is normalised, with the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.structure.placing.value_places import Place
from gradscope.comparison.precision import dtype_class, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import Sources, sources_of
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key

#: The share of a step's value that rounding in float32 may leave of it beside a multiple of what it reads.
_FITS: Final = 1e-3

#: How many roundings of a coarser dtype that may be.
_ROUNDINGS: Final = 8

#: The fewest values of a group, of which the deviation is taken, that say anything.
_FEWEST: Final = 3

#: How many elements of the first examples are read, the most steps before a scale, and the most values looked at.
_SAMPLE: Final = 1 << 18
_MOST_STEPS: Final = 4
_MOST_VALUES: Final = 200


def with_norm_inputs(source: DumpSource, places: Mapping[str, Place], free: Collection[str]) -> dict[str, Place]:
    """Returns the places of a program's values, with what its norms read as read with their parameters.

    Args:
        source: The dump of the program.
        places: The place of each value by its name.
        free: The keys without a counterpart. Of other values the places remain as they are.
    """
    layers, sources = source.manifest.layers, sources_of(source.manifest.layers)
    found = dict(places)
    vectors = frozenset(
        name for family, name in map(split_key, source.keys())
        if family == PARAM and len(source.entry(key_of(PARAM, name)).shape) == 1
    )  # fmt: skip
    # A norm has vectors alone for parameters.
    scaled = {name for layer in layers if layer.params and vectors.issuperset(layer.params) for name in layer.inputs}
    known = (name for name in places if name in scaled and key_of(ACTIVATION, name) in free)
    for name in islice(known, _MOST_VALUES):
        *steps, first = _back(source, sources, places, name)
        within = places[name].read_with
        for step in (split_key(each)[1] for each in steps):
            old = found.get(step, Place())
            found[step] = replace(old, read_with=old.read_with - within, within=old.within | within)
        if steps:
            read = split_key(first)[1]
            old = found.get(read, Place())
            found[read] = replace(old, read_with=old.read_with | within)
    return found


def _back(source: DumpSource, sources: Sources, places: Mapping[str, Place], name: str) -> list[str]:
    """Returns the key of a value that is scaled, of the steps before it, and of what the first of these normalises."""
    found = [key_of(ACTIVATION, name)]
    while len(found) <= _MOST_STEPS and not places.get(split_key(found[-1])[1], Place()).params:
        size = math.prod(source.entry(found[-1]).shape)
        known = (each for each in sources.get(found[-1], ()) if split_key(each)[0] != PARAM and source.has_tensor(each))
        read = [each for each in dict.fromkeys(known) if math.prod(source.entry(each).shape) == size]
        if len(read) != 1 or read[0] in found or not _is_normalised(source, found[-1], read[0]):
            break
        found.append(read[0])
    return found


def _is_normalised(source: DumpSource, key: str, read: str) -> bool:
    """Returns whether a value is what it is computed from, less a number and times a number of each group of that."""
    entries = source.entry(key), source.entry(read)
    if not source.has_tensor(key) or any(dtype_class(each.dtype) != "float" for each in entries):
        return False
    if entries[0].shape[:1] != entries[1].shape[:1] or len(entries[1].shape) < 2:
        return False
    count = max(1, _SAMPLE * entries[0].shape[0] // max(1, math.prod(entries[0].shape)))
    value, other = (source.array(each)[:count].astype(np.float64) for each in (key, read))
    if not (np.isfinite(value).all() and np.isfinite(other).all() and value.any() and other.any()):
        return False
    coarsest = max(machine_epsilon(each.dtype) for each in entries)
    most = max(_FITS, _ROUNDINGS * coarsest)
    value = value.reshape(other.shape)
    if _left(value, other, tuple(range(other.ndim)), centred=False) <= most:  # a factor, which norms take no notice of
        return False
    return any(_left(value.reshape(shape), other.reshape(shape), axes) <= most for shape, axes in _groups(other.shape))


def _groups(shape: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields shapes and axes, over which a norm of values of a shape may take its means."""
    last = len(shape) - 1
    for channel in dict.fromkeys((last, 1)):
        space = tuple(axis for axis in range(1, len(shape)) if axis != channel)
        for axes in dict.fromkeys(((channel,), space, (*space, channel), (0, *space))):
            if math.prod(shape[axis] for axis in axes) >= _FEWEST:
                yield tuple(shape), axes
        for count in (each for each in range(2, shape[channel]) if shape[channel] % each == 0):
            grouped = (*shape[:channel], count, shape[channel] // count, *shape[channel + 1 :])
            axes = (*(axis + (axis > channel) for axis in space), channel + 1)
            if math.prod(grouped[axis] for axis in axes) >= _FEWEST:
                yield grouped, axes


def _left(value: Array, read: Array, axes: tuple[int, ...], *, centred: bool = True) -> float:
    """Returns the share of a value that is no multiple of what it reads in each group, but for a constant."""
    if centred:
        one, other = (each - each.mean(axes, keepdims=True) for each in (value, read))
    else:
        one, other = value, read
    power = np.square(other).sum(axes, keepdims=True)
    factor = (one * other).sum(axes, keepdims=True) / np.where(power > 0, power, 1.0)
    return float(np.linalg.norm(one - factor * other) / max(float(np.linalg.norm(one)), 1e-300))
