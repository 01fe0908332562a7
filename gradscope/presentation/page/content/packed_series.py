"""Packs statistics of many tensors over many steps in three bytes each, which compress well.

A magnitude is a whole number of 500ths of an octave, so that it is right to within 0.07 %; its sign is the lowest bit.
What changes little from step to step is written as differences to the step before, with their signs as the lowest bits;
what jumps about as it is. First come the low bytes of all, then the middle ones, then the high ones, which are nearly
all zero.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

#: The parts of an octave.
OCTAVE_PARTS: Final = 500
#: Magnitudes are between these powers of two; what is beyond counts as the nearest.
_LOWEST: Final = -160
_LARGEST_CODE: Final = 160_000
_INFINITE: Final = 400_000
_MISSING: Final = 400_001


def packed(values: np.ndarray) -> bytes:
    """Returns statistics of tensors over steps as bytes.

    Args:
        values: Of shape (tensors, steps); NaN where a value is missing.

    Returns:
        A byte that is 1 for differences, then three for each, which `unpacked` in `script/data/content.js` reads.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(np.abs(values)) - _LOWEST
        scaled = np.clip(np.rint(octaves * OCTAVE_PARTS) + 1, 1, _LARGEST_CODE)
    sizes = np.where(values == 0, 0, np.where(np.isinf(values), _INFINITE, np.where(np.isnan(values), 0, scaled)))
    codes = np.where(np.isnan(values), _MISSING, sizes).astype(np.int64) << 1 | (values < 0)
    changes = np.diff(codes, axis=1, prepend=0)
    written = _planes(codes), _planes(changes << 1 ^ changes >> 63)
    best = min((0, 1), key=lambda at: len(zlib.compress(written[at], 1)))
    return bytes([best]) + written[best]


def _planes(codes: np.ndarray) -> bytes:
    return b"".join((codes >> shift & 0xFF).astype(np.uint8).tobytes() for shift in (0, 8, 16))
