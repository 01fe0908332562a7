"""`AxisValues` are what the devices along one axis of a mesh have of a value, beside what there is on fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import as_reals
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.by_shards import layout_of
from gradscope.comparison.pairing.loops.shard_groups import ShardGroup
from gradscope.comparison.pairing.loops.shard_layouts import TERMS, ShardLayout, Way
from gradscope.comparison.pairing.matching import Dumps
from gradscope.naming import ACTIVATION, key_of, split_key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisValues:
    """AxisValues stores the values along one axis of a mesh, those along its other axes put together.

    Attributes:
        axis: The axis of the mesh.
        sliced: The axis of the tensor that is divided along it; None where each device has the whole.
        one: What one device has in the place of each device: slices of its value, or the value each time.
        several: What the devices have.
        whole: The value of one device.
    """

    axis: str
    sliced: int | None
    one: Sequence[Array]
    several: Sequence[Array]
    whole: Array


def axis_values(dumps: Dumps, group: ShardGroup, family: str, like: Sequence[ShardGroup] = ()) -> Iterator[AxisValues]:
    """Yields the values of a group of shards along each axis of the mesh, in double precision.

    Args:
        dumps: The dumps of one device and of several.
        group: The shards.
        family: The family of the tensors: activations or their gradients.
        like: What is divided as the value is, of its shape, where that may differ too much to show how it is divided.
    """
    layouts = (layout_of(dumps.ref, dumps.cand, each, family) for each in (*like, group))
    layout = next(filter(None, layouts), None)
    keys = [key_of(family, split_key(key)[1]) for key in (group.whole, *group.parts)]
    if layout is None or not dumps.ref.has_tensor(keys[0]) or not all(map(dumps.cand.has_tensor, keys[1:])):
        return
    whole = as_reals(dumps.ref.array(keys[0]))
    shards = np.stack([as_reals(dumps.cand.array(key)) for key in keys[1:]])
    layout = replace(layout, whole=whole.shape, shard=shards.shape[1:])  # complex numbers have an axis of their parts
    grid = shards.reshape(*layout.sizes, *layout.shard)
    for number, axis in enumerate(group.axes):
        way = layout.ways[number]
        sliced = way if isinstance(way, int) else None
        several = [_together(each, layout, number, keys[1:]) for each in np.moveaxis(grid, number, 0)]
        blocks = [whole] * len(several) if sliced is None else np.split(whole, len(several), sliced)
        yield AxisValues(axis=axis, sliced=sliced, one=blocks, several=several, whole=whole)


def terms_read(dumps: Dumps, groups: Mapping[str, ShardGroup], name: str, axis: str) -> list[ShardGroup]:
    """Returns what a value is computed from at once that has its shape, and is in terms along an axis of the mesh.

    Args:
        dumps: The dumps of one device and of several.
        groups: The groups of shards by the keys of one device.
        name: The name of the value.
        axis: The axis.
    """
    read = dict.fromkeys(each for layer in dumps.ref.manifest.layers if name in layer.outputs for each in layer.inputs)
    found = [groups[key] for key in (key_of(ACTIVATION, each) for each in read) if key in groups]
    layouts = [layout_of(dumps.ref, dumps.cand, group, ACTIVATION) for group in found]
    shape = dumps.ref.entry(key_of(ACTIVATION, name)).shape
    return [
        group
        for group, layout in zip(found, layouts, strict=True)
        if layout is not None and layout.whole == shape and layout.ways[[*group.axes].index(axis)] in TERMS
    ]


def _together(values: Array, layout: ShardLayout, number: int, keys: Sequence[str]) -> Array:
    """Returns what the devices at one place along an axis of the mesh have, put together along the others."""
    ways: list[Way] = [*layout.ways]
    sizes, way = [*layout.sizes], ways.pop(number)
    size = sizes.pop(number)
    if not sizes:
        return values
    order = tuple(each - (each > number) for each in layout.order if each != number)
    whole = tuple(length // size if axis == way else length for axis, length in enumerate(layout.whole))
    rest = ShardLayout(sizes=tuple(sizes), ways=tuple(ways), order=order, whole=whole, shard=layout.shard)
    return Recipe(keys=tuple(keys), steps=rest.steps()).results([*values.reshape(-1, *layout.shard)])[0]
