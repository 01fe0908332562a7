"""Measures how much memory objects take that were made of a part of a manifest."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from typing import Any, Final, cast

#: What an object takes beside its size, because memory is given out in steps; and what two references to an item take.
_BESIDE_BYTES: Final = 8
_REFERENCES_BYTES: Final = 16


def held_bytes(items: Sequence[Any]) -> int:
    """Returns how many bytes some dataclasses of one type take, with all that only they hold.

    Args:
        items: The dataclasses. Their fields are plain values, or tuples or mappings of these.
    """
    if not items:
        return 0
    held = _by_identity(chain.from_iterable(map(attrgetter(each.name), items) for each in fields(items[0])))
    within = _by_identity(chain.from_iterable(map(_contents, held.values())))
    objects = chain(items, held.values(), (each for key, each in within.items() if key not in held))
    sizes = [*map(sys.getsizeof, objects)]
    return sum(sizes) + _BESIDE_BYTES * len(sizes) + _REFERENCES_BYTES * len(items)


def _by_identity(values: Iterable[object]) -> dict[int, object]:
    return {id(each): each for each in values}


def _contents(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        return iter(cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        found = cast("Mapping[object, object]", value)
        return chain(found, found.values())
    return iter(())
