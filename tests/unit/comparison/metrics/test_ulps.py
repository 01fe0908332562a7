"""Distances in units in the last place, by steps of `np.nextafter`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison.metrics.ulps import ulp_distances

FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz]


def distance(one: Any, other: Any, dtype: Any) -> int:
    return int(ulp_distances(np.array([one], dtype), np.array([other], dtype))[0])


def stepped(value: float, steps: int, dtype: Any) -> Any:
    number = dtype(value)
    for _ in range(steps):
        number = np.nextafter(number, dtype(ml_dtypes.finfo(dtype).max))
    return number


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [1.0, 0.5, 2.0, -1.0, 0.0, -0.5])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_are_counted_also_across_exponents(dtype: Any, start: float, steps: int) -> None:
    assert distance(start, stepped(start, steps, dtype), dtype) == steps
    assert distance(stepped(start, steps, dtype), start, dtype) == steps


@pytest.mark.parametrize("dtype", FLOATS)
def test_steps_are_counted_across_zero(dtype: Any) -> None:
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    assert distance(-tiny, tiny, dtype) == 2
    assert distance(stepped(-2 * float(tiny), 5, dtype), -2 * float(tiny), dtype) == 5


@pytest.mark.parametrize("dtype", FLOATS[:4])
def test_both_zeros_are_one_value(dtype: Any) -> None:
    assert distance(0.0, -0.0, dtype) == 0


@pytest.mark.parametrize(
    ("dtype", "largest"), [(np.float16, 0x7BFF), (np.float32, 0x7F7FFFFF), (np.float64, 0x7FEFFFFFFFFFFFFF)]
)
def test_the_full_range_does_not_overflow(dtype: Any, largest: int) -> None:
    limits = np.finfo(dtype)
    assert distance(limits.min, limits.max, dtype) == 2 * largest


def test_an_exponent_without_sign_has_distances_too() -> None:
    assert distance(0.25, 4.0, ml_dtypes.float8_e8m0fnu) == 4
