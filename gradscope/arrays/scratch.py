"""Provides buffers for the intermediate results of a block: one set per thread, reused for every block.

Why not let NumPy allocate: a freed megabyte returns to the operating system, and a new one consists of pages that fault
one by one. That took two thirds of the time of a full pass (0.5 GB/s against 1.4).
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gradscope.arrays.blocks import Array


class ScratchSlot(Enum):
    """A `ScratchSlot` names an intermediate result; those in use at the same time have a buffer each."""

    NARROW = "a block of a narrow float as float32"
    WIDE = "a block as float64"
    ORDINALS = "its ordinals"
    WORK = "a step's own result"
    TALLIES = "the counts of all words of 16 bits"


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.bytes_of: dict[Enum, Array] = {}


_buffers = _Buffers()


def scratch(slot: Enum, size: int, dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Returns an uninitialised buffer, which is valid until this thread requests the same slot again.

    Args:
        slot: A member of `ScratchSlot`, or of another package's enumeration.
        size: Number of elements.
        dtype: Their dtype.
    """
    element = np.dtype(dtype)
    size_bytes = size * element.itemsize
    buffer = _buffers.bytes_of.get(slot)
    if buffer is None or buffer.size < size_bytes:
        buffer = _buffers.bytes_of[slot] = np.empty(size_bytes, np.uint8)
    return buffer[:size_bytes].view(element)
