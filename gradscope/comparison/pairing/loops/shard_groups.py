"""`shard_groups` finds by their names the values that a mesh of devices has in place of one.

The shards of a mesh are numbered like the iterations of a loop, the last axis of the mesh fastest. A program that is
run on one device has the value without that number, or with the number 0 alone.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, key_of, split_key
from gradscope.naming.numbering import NUMBER

_NUMBER: Final = re.compile(rf"\[({NUMBER})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """ShardGroup stores a value that one device has, and those that the shards of a mesh have.

    Attributes:
        whole: The key of the value.
        parts: The keys of the shards', in order.
        axes: The axes of the mesh that the shards are numbered by, each with its size.
    """

    whole: str
    parts: tuple[str, ...]
    axes: Mapping[str, int]


def shard_groups(one: DumpSource, several: DumpSource, keys: Iterable[str]) -> Iterator[ShardGroup]:
    """Yields the activations of one device, each with those of the shards.

    Args:
        one: The dump of one device.
        several: The dump of several.
        keys: Keys of `several`.
    """
    manifest = several.manifest
    meshes = _meshes({axis: manifest.mesh[axis] for axis in manifest.shard_axes if axis in manifest.mesh})
    wholes, taken = frozenset(one.keys()), set[str]()
    for (before, after), numbered in _numbered(keys).items():
        parts = tuple(key for _, key in sorted(numbered.items()))
        axes = meshes.get(len(parts)) if max(numbered) == len(parts) - 1 else None
        if axes is None or not taken.isdisjoint(parts):
            continue
        # A loop over parts of the batch has other iterations; a mesh of one device has no other shard.
        single, second = (key_of(ACTIVATION, f"{before}[{number}]{after}") for number in (0, 1))
        without = key_of(ACTIVATION, before + after)
        whole = single if single in wholes and second not in wholes else without
        if whole in wholes:
            taken.update(parts)
            yield ShardGroup(whole=whole, parts=parts, axes=axes)


def _meshes(mesh: Mapping[str, int]) -> dict[int, Mapping[str, int]]:
    """Returns by the number of their devices the axes of a mesh that a program may be divided by: most axes first."""
    found: dict[int, Mapping[str, int]] = {}
    axes = [axis for axis, size in mesh.items() if size > 1]
    for count in range(len(axes), 0, -1):
        for some in combinations(axes, count):
            found.setdefault(math.prod(mesh[axis] for axis in some), {axis: mesh[axis] for axis in some})
    return found


def _numbered(keys: Iterable[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Returns the activations whose names differ in one number, by that, by what is before and behind it."""
    found: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for family, name, key in ((*split_key(key), key) for key in keys):
        for number in _NUMBER.finditer(name) if family == ACTIVATION else ():
            found[name[: number.start()], name[number.end() :]][int(number[1])] = key
    return found
