"""The bins of value histograms against their definition, and against `numpy.histogram`, in every dtype and place."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from gradscope.errors import DumpError
from gradscope.history.value_histograms import BINS_PER_SIGN, ValueHistogram, counted
from gradscope.instrument.statistics.histogram_counts import _on_device, histogram_of, statistics_and_histogram

SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 1.5, -2.0, 3.4e38, -3.4e38, 1e-45, -1e-45, 1.1754944e-38)


def wide(seed: int) -> np.ndarray:
    """Numbers of all sizes that a float32 has, and of none."""
    generator = np.random.default_rng(seed)
    sizes = generator.uniform(-44, 38, 500)
    return np.array([*(generator.normal(size=500) * 10.0**sizes), *SPECIAL], np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_a_bin_has_the_numbers_between_its_edges(seed: int) -> None:
    values = wide(seed)
    found = ValueHistogram.of(counted(values))
    exact = values.astype(np.float64)
    for number, count, low, high in zip(found.bins, found.counts, found.lower, found.upper, strict=True):
        if number > 0:
            expected = (exact > 0) & (exact >= low) & (exact < high)
        elif number < 0:
            expected = (exact < 0) & (exact > low) & (exact <= high)
        else:
            expected = exact == 0
        assert count == expected.sum(), number
    assert found.total == np.isfinite(values).sum()


def test_two_bins_are_an_octave() -> None:
    found = ValueHistogram.of(np.ones(2 * BINS_PER_SIGN + 1, np.int64))
    positive = found.upper[BINS_PER_SIGN + 3 :]
    np.testing.assert_array_equal(positive[2:], 2 * positive[:-2])
    np.testing.assert_array_equal(found.lower, -found.upper[::-1])
    assert (found.lower[1:] == found.upper[:-1]).all()
    assert positive[-1] == 2.0**128


def test_numpy_counts_the_same() -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    found = ValueHistogram.of(counted(values))
    gaps = np.unique([*found.lower, *found.upper])
    expected, _ = np.histogram(values, gaps)
    assert sorted(expected[expected > 0]) == sorted(found.counts)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float64])
def test_another_dtype_is_counted_as_float32(dtype: Any) -> None:
    values = np.random.default_rng(0).normal(size=300).astype(dtype)
    assert (counted(values) == counted(values.astype(np.float32))).all()


def test_what_float32_has_not_is_in_the_last_and_the_first_bin() -> None:
    found = ValueHistogram.of(counted(np.array([1e300, -1e300, 1e-300, -1e-300, np.inf])))
    assert dict(zip(found.bins, found.counts, strict=True)) == {-BINS_PER_SIGN: 1, -1: 1, 1: 1, BINS_PER_SIGN: 1}


@pytest.mark.slow
def test_a_compiled_step_counts_the_same_on_every_device() -> None:
    values = wide(7)
    assert histogram_of(np.asarray(jax.jit(statistics_and_histogram)(values))) == ValueHistogram.of(counted(values))
    digits = np.asarray(jax.jit(_on_device)(values)).reshape(-1, 2).astype(np.int64)
    assert (digits @ [2**16, 1] == counted(values)).all()


def test_a_blob_is_what_the_page_says() -> None:
    found = ValueHistogram(bins=(-2, 0, 7), counts=(3, 2**33, 5))
    pairs = [(-2, 3), (0, 2**32 - 1), (7, 5)]
    blob = b"".join(number.to_bytes(4, "little", signed=True) + count.to_bytes(4, "little") for number, count in pairs)
    assert found.to_bytes() == blob
    assert ValueHistogram.from_bytes(blob).bins == found.bins
    assert ValueHistogram.from_bytes(b"") == ValueHistogram()


@pytest.mark.parametrize(
    "pairs", [[(511, 1)], [(-511, 1)], [(2, 1), (1, 1)], [(1, 1), (1, 1)], [(1, 0)], [(-(2**31), 1), (0, 1)]]
)
def test_a_strange_blob_is_refused(pairs: list[tuple[int, int]]) -> None:
    blob = b"".join(number.to_bytes(4, "little", signed=True) + count.to_bytes(4, "little") for number, count in pairs)
    with pytest.raises(DumpError, match="bins or counts"):
        ValueHistogram.from_bytes(blob)
    with pytest.raises(DumpError, match="as many bytes"):
        ValueHistogram.from_bytes(blob[:-1])


def test_octaves_are_those_of_the_magnitudes() -> None:
    values = np.concatenate([wide(0), np.zeros(3, np.float32)])
    values = values[np.isfinite(values)]
    mantissas, exponents = np.frexp(np.abs(values[values != 0]).astype(np.float64))
    expected = np.unique(np.maximum(exponents - 1, -127), return_counts=True)
    found = {exponent: number for exponent, number in ValueHistogram.of(counted(values)).octaves() if number}
    assert found == dict(zip(*(each.tolist() for each in expected), strict=True))
    assert (mantissas >= 0.5).all()
    assert ValueHistogram.of(counted(np.zeros(4, np.float32))).octaves() == []
