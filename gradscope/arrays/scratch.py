"""Scratch: the buffers that a block's intermediate results go into, one set per thread, used again for every block.

Why not let NumPy allocate: a megabyte that is freed goes back to the operating system, and comes back as pages that
fault one by one. That took two thirds of the time of a full pass (0.5 GB/s against 1.4).
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gradscope.arrays.blocks import Array


class Slot(Enum):
    """The intermediate results that are alive at the same time."""

    NARROW = "a block of a narrow float as float32"
    WIDE = "a block as float64"
    ORDINALS = "its ordinals"
    WORK = "a step's own result"


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.bytes_of: dict[Enum, Array] = {}


_buffers = _Buffers()


def scratch(slot: Enum, size: int, dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """A buffer of `size` elements with whatever is in it, valid until this thread asks for the same slot again.

    A slot is a member of `Slot`, or of another room's own enumeration.
    """
    wanted = np.dtype(dtype)
    size_bytes = size * wanted.itemsize
    buffer = _buffers.bytes_of.get(slot)
    if buffer is None or buffer.size < size_bytes:
        buffer = _buffers.bytes_of[slot] = np.empty(size_bytes, np.uint8)
    return buffer[:size_bytes].view(wanted)
