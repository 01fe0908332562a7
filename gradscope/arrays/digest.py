"""The hash of a tensor's bytes, by which two dumps without tensors can still say "bit for bit the same"."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from gradscope.arrays.blocks import Array, blocks

_HEX_DIGITS: Final = 128 // 4

#: Elements that are hashed in one call, in which the interpreter lock is free: few calls, and yet bounded copies of an
#: array that is not contiguous.
_ELEMENTS: Final = 1 << 22


class Digest:
    """The hash of bytes that arrive in pieces: the first 128 bits of their SHA-256.

    Why SHA-256: of the algorithms in `hashlib` it and SHA-1 are the fastest where the processor has SHA instructions
    (1.8 GB/s, against 0.9 for BLAKE2b, 0.8 for MD5), and a dump from a stranger should not be able to fake equality.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, block: Array) -> None:
        """Take in the bytes of a contiguous block."""
        # The interpreter lock is free while a block is hashed, so another thread may compute at the same time. The view
        # is needed because the buffer protocol does not know the dtypes of ml_dtypes.
        self._hash.update(block.view(np.uint8).data)

    def hexadecimal(self) -> str:
        """The 32 hexadecimal digits of what has been taken in so far."""
        return self._hash.hexdigest()[:_HEX_DIGITS]


def content_hash(array: np.ndarray[Any, Any]) -> str:
    """The 128-bit hash of an array's elements in C order, each in the machine's byte order.

    Args:
        array: Any shape and strides.

    Returns:
        32 hexadecimal digits. Shape and dtype do not enter.
    """
    return hash_of_blocks(blocks(array, _ELEMENTS))


def hash_of_blocks(contiguous: Iterable[Array]) -> str:
    """The hash of blocks laid end to end, as `content_hash` gives it for the array that they make up."""
    digest = Digest()
    for block in contiguous:
        digest.add(block)
    return digest.hexadecimal()
