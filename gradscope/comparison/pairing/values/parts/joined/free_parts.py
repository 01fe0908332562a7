"""`FreeParts` are the tensors of a dump that may be joined in one of the other: of shapes that fit, and enough of them.

They are known by shape and dtype, of which there are few, whatever the number of tensors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gradscope.comparison.layout.layouts import Shape
from gradscope.dump.interfaces import DumpSource

#: The most tensors that are tried as parts of one: all of them are read.
_MOST_PARTS: Final = 128


class FreeParts:
    """`FreeParts` are tensors of which none is known yet to be a part of another one.

    Args:
        source: Their dump.
        keys: Their keys.
    """

    def __init__(self, source: DumpSource, keys: Iterable[str]) -> None:
        self._source = source
        self._places: defaultdict[tuple[Shape, str], dict[str, int]] = defaultdict(dict)
        for place, key in enumerate(keys):
            self._places[self._kind(key)][key] = place

    def __iter__(self) -> Iterator[str]:
        for alike in self._places.values():
            yield from alike

    def of(self, size: int, fits: Callable[[Shape, str], bool], *, least: int) -> list[str]:
        """Returns those that may be parts of a tensor, in order; none where they cannot make it up, and none is read.

        Args:
            size: The number of its elements.
            fits: Returns whether a part may have a shape and a dtype.
            least: The fewest parts of a tensor.
        """
        fitting = [(math.prod(kind[0]), alike) for kind, alike in self._places.items() if fits(*kind)]
        if not least <= sum(len(alike) for _, alike in fitting) <= _MOST_PARTS:
            return []
        if sum(elements * len(alike) for elements, alike in fitting) < size:
            return []
        places = {key: place for _, alike in fitting for key, place in alike.items()}
        return sorted(places, key=places.__getitem__)

    def remove(self, keys: Iterable[str]) -> None:
        """Leaves out those that have been found to be parts."""
        for key in keys:
            del self._places[self._kind(key)][key]

    def _kind(self, key: str) -> tuple[Shape, str]:
        entry = self._source.entry(key)
        return entry.shape, entry.dtype
