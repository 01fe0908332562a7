"""`shard_groups` finds by their names the values that a mesh of devices has in place of one.

The shards of a mesh are numbered like the iterations of a loop, the last axis of the mesh fastest. A program that is
run on one device has the value without that number, or with the number 0 alone. One that is run on fewer devices has
shards itself, each of which is in the place of those that divide it further.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count, takewhile
from typing import Final

import numpy as np

from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, key_of, split_key
from gradscope.naming.numbering import NUMBER

_NUMBER: Final = re.compile(rf"\[({NUMBER})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """ShardGroup stores a value that one device has, and those that the shards of a mesh have in its place.

    Attributes:
        whole: The key of the value.
        parts: The keys of the shards', in order.
        axes: The axes of the mesh that the shards are numbered by, each with the number of shards along it.
    """

    whole: str
    parts: tuple[str, ...]
    axes: Mapping[str, int]


def divides(fewer: DumpSource, more: DumpSource) -> bool:
    """Returns whether a program is run on more devices, along axes of the mesh that divide what fewer have further."""
    sizes, others = fewer.manifest.mesh, more.manifest.mesh
    multiples = all(others.get(axis, 1) % size == 0 for axis, size in sizes.items())
    return multiples and math.prod(others.values()) > math.prod(sizes.values())


def shard_groups(fewer: DumpSource, more: DumpSource, keys: Iterable[str]) -> Iterator[ShardGroup]:
    """Yields the activations of one device, or of a few, each with those of the shards that have parts of it.

    Args:
        fewer: The dump of one device, or of a few.
        more: The dump of more devices, which divide what those have (`divides`).
        keys: Keys of `more`.
    """
    manifest, few = more.manifest, fewer.manifest.mesh
    meshes = _meshes({axis: manifest.mesh[axis] for axis in manifest.shard_axes if axis in manifest.mesh})
    wholes, taken = frozenset(fewer.keys()), set[str]()
    for around, numbered in _numbered(keys).items():
        parts = tuple(key for _, key in sorted(numbered.items()))
        axes = meshes.get(len(parts)) if max(numbered) == len(parts) - 1 else None
        if axes is None or not taken.isdisjoint(parts):
            continue
        sizes = [few.get(axis, 1) for axis in axes]
        for group in _divided(_wholes(around, math.prod(sizes), wholes), parts, axes, sizes):
            taken.update(group.parts)
            yield group


def _wholes(around: tuple[str, str], devices: int, wholes: Container[str]) -> list[str]:
    """Returns the keys of the values that so many devices have in a place; none where there are other ones.

    Args:
        around: What is before the number in the place's name, and what is behind it.
        devices: The number of devices.
        wholes: All keys.
    """
    before, after = around
    names = (f"{before}[{number}]{after}" for number in count())
    numbered = [*takewhile(wholes.__contains__, (key_of(ACTIVATION, name) for name in names))]
    if len(numbered) == devices:
        return numbered
    # A loop over parts of the batch has other iterations.
    without = key_of(ACTIVATION, before + after)
    return [without] if devices == 1 and without in wholes else []


def _divided(
    wholes: Sequence[str], parts: Sequence[str], axes: Mapping[str, int], sizes: Sequence[int]
) -> Iterator[ShardGroup]:
    """Yields each of some values with the shards that divide it.

    Args:
        wholes: The keys of the values; none where they are not known.
        parts: The keys of the shards.
        axes: The numbers of shards along the axes of the mesh.
        sizes: The numbers of values along them.
    """
    further = {axis: shards // size for (axis, shards), size in zip(axes.items(), sizes, strict=True)}
    if not wholes or len(wholes) == len(parts):
        return
    # Along each axis, shards with the same value are next to each other.
    grid = np.arange(len(parts)).reshape([each for pair in zip(sizes, further.values(), strict=True) for each in pair])
    numbers = grid.transpose([*range(0, grid.ndim, 2), *range(1, grid.ndim, 2)]).reshape(len(wholes), -1)
    named = {axis: size for axis, size in further.items() if size > 1}
    for whole, places in zip(wholes, numbers.tolist(), strict=True):
        yield ShardGroup(whole=whole, parts=tuple(parts[place] for place in places), axes=named)


def _meshes(mesh: Mapping[str, int]) -> dict[int, Mapping[str, int]]:
    """Returns by the number of their devices the axes of a mesh that a program may be divided by: most axes first."""
    found: dict[int, Mapping[str, int]] = {}
    axes = [axis for axis, size in mesh.items() if size > 1]
    for number in range(len(axes), 0, -1):
        for some in combinations(axes, number):
            found.setdefault(math.prod(mesh[axis] for axis in some), {axis: mesh[axis] for axis in some})
    return found


def _numbered(keys: Iterable[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Returns the activations whose names differ in one number, by that, by what is before and behind it."""
    found: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for family, name, key in ((*split_key(key), key) for key in keys):
        for number in _NUMBER.finditer(name) if family == ACTIVATION else ():
            found[name[: number.start()], name[number.end() :]][int(number[1])] = key
    return found
