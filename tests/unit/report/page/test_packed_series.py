"""Packed statistics, read back by a second implementation of what the scripts read."""

from __future__ import annotations

import base64
import gzip
import math

import numpy as np
import pytest

from gradscope.report.page.content.packed_series import OCTAVE_PARTS, packed


def unpacked(content: bytes, rows: int, steps: int) -> np.ndarray:
    low, middle, high = np.frombuffer(content, np.uint8).reshape(3, rows, steps).astype(np.int64)
    codes = np.cumsum(low + 256 * middle + 65_536 * high, axis=1)
    codes = (codes + 2**23) % 2**24 - 2**23
    sizes = np.where(codes == 0, 0.0, 2.0 ** ((np.abs(codes) - 1) / OCTAVE_PARTS - 160))
    sizes = np.where(np.abs(codes) == 400_000, np.inf, np.where(codes == 400_001, np.nan, sizes))
    return np.copysign(sizes, codes)


def test_numbers_come_back_to_three_digits() -> None:
    values = np.random.default_rng(0).normal(size=(5, 40)) * 10.0 ** np.arange(-20, 20)
    found = unpacked(packed(values), 5, 40)
    np.testing.assert_allclose(found, values, rtol=2 ** (0.5 / OCTAVE_PARTS) - 1 + 1e-9)


def test_zeros_infinities_and_missing_values_come_back_exactly() -> None:
    values = np.array([[0.0, math.inf, -math.inf, math.nan, 1.0]])
    np.testing.assert_array_equal(unpacked(packed(values), 1, 5), values)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_what_is_beyond_the_range_is_the_nearest_and_neither_zero_nor_infinite(value: float) -> None:
    (found,) = unpacked(packed(np.array([[value]])), 1, 1)[0]
    assert 0 < found < math.inf


def test_a_statistic_of_3000_tensors_at_200_steps_takes_little_more_than_a_megabyte() -> None:
    """Four of them that are all noise are a page of 5 MB; most are not, or are of some families only."""
    random = np.random.default_rng(0)
    walk = np.cumsum(random.normal(size=(300, 200)) * 0.02, axis=1)
    values = np.exp(random.normal(size=(300, 1)) * 3 + walk + random.normal(size=(300, 200)) * 0.1)
    assert len(base64.b64encode(gzip.compress(packed(values)))) * 10 < 1_250_000
