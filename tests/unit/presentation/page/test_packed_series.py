"""Packed statistics, read back by a second implementation of what the scripts read."""

from __future__ import annotations

import base64
import gzip
import math

import numpy as np
import pytest

from gradscope.presentation.page.content.packed_series import OCTAVE_PARTS, packed


def unpacked(content: bytes, rows: int, steps: int) -> np.ndarray:
    low, middle, high = np.frombuffer(content[1:], np.uint8).reshape(3, rows, steps).astype(np.int64)
    read = low + 256 * middle + 65_536 * high
    signed = np.where(read % 2 == 0, read // 2, -(read + 1) // 2)
    codes = np.cumsum(signed, axis=1) if content[0] else read
    size, negative = codes // 2, codes % 2
    sizes = np.where(size == 0, 0.0, 2.0 ** ((size - 1) / OCTAVE_PARTS - 160))
    sizes = np.where(size == 400_000, np.inf, np.where(size == 400_001, np.nan, sizes))
    return np.where(negative == 1, -sizes, sizes)


def test_numbers_come_back_to_three_digits() -> None:
    values = np.random.default_rng(0).normal(size=(5, 40)) * 10.0 ** np.arange(-20, 20)
    found = unpacked(packed(values), 5, 40)
    np.testing.assert_allclose(found, values, rtol=2 ** (0.5 / OCTAVE_PARTS) - 1 + 1e-9)


def test_what_drifts_is_written_as_differences_and_what_jumps_is_not() -> None:
    random = np.random.default_rng(0)
    drifting = np.exp(np.cumsum(random.normal(size=(50, 40)) * 0.01, axis=1))
    jumping = random.integers(0, 50, (50, 40)).astype(float)
    for values, differences in ((drifting, 1), (jumping, 0)):
        found = packed(values)
        assert found[0] == differences
        np.testing.assert_allclose(unpacked(found, 50, 40), values, rtol=1e-3)


def test_zeros_infinities_and_missing_values_come_back_exactly() -> None:
    values = np.array([[0.0, math.inf, -math.inf, math.nan, 1.0]])
    np.testing.assert_array_equal(unpacked(packed(values), 1, 5), values)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_what_is_beyond_the_range_is_the_nearest_and_neither_zero_nor_infinite(value: float) -> None:
    (found,) = unpacked(packed(np.array([[value]])), 1, 1)[0]
    assert 0 < found < math.inf


def test_a_statistic_of_3000_tensors_at_200_steps_takes_little_more_than_a_megabyte() -> None:
    """Five of them that are all noise are a page of 5 MB; most are not, or are of some families only."""
    random = np.random.default_rng(0)
    walk = np.cumsum(random.normal(size=(300, 200)) * 0.02, axis=1)
    values = np.exp(random.normal(size=(300, 1)) * 3 + walk + random.normal(size=(300, 200)) * 0.1)
    assert len(base64.b64encode(gzip.compress(packed(values)))) * 10 < 1_000_000
