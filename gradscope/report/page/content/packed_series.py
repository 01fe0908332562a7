"""Packs statistics of many tensors over many steps in three bytes each, which compress well.

A magnitude is a whole number of 500ths of an octave, so that it is right to within 0.07 %. Series change little
from step to step: what is written is the difference to the step before, first the low bytes of all, then the middle
ones, then the high ones, which are nearly all zero.
"""

from __future__ import annotations

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
        Three bytes for each, which `unpacked` in `script/content.js` reads.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(np.abs(values)) - _LOWEST
        scaled = np.clip(np.rint(octaves * OCTAVE_PARTS) + 1, 1, _LARGEST_CODE)
    codes = np.where(values == 0, 0, np.where(np.isinf(values), _INFINITE, np.where(np.isnan(values), 0, scaled)))
    codes = np.where(np.isnan(values), _MISSING, np.copysign(codes, values)).astype(np.int64)
    steps = np.diff(codes, axis=1, prepend=0)
    return b"".join((steps >> shift & 0xFF).astype(np.uint8).tobytes() for shift in (0, 8, 16))
