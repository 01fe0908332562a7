"""The trend of a statistic, which ends where its tensor is no longer finite."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.history.tensor_trends import Trend

STEPS = np.array([0, 10, 20])


def test_a_tensor_that_grows_by_ten_in_ten_steps() -> None:
    trend = Trend.of(STEPS, np.array([1.0, 10.0, 100.0]), np.zeros(3))
    assert (trend.first, trend.last, trend.broken) == (1, 100, False)
    assert trend.slope == pytest.approx(10)
    assert trend.change == pytest.approx(2)


def test_what_is_left_of_a_tensor_that_is_not_finite_does_not_count() -> None:
    trend = Trend.of(STEPS, np.array([1.0, 10.0, 1e-9]), np.array([0.0, 0.0, 7.0]))
    assert math.isnan(trend.last)
    assert trend.broken
    assert trend.slope == pytest.approx(10)
    assert trend.change == pytest.approx(1)
    assert trend.values[-1] == math.inf


def test_a_statistic_that_is_not_known_at_the_end_breaks_nothing() -> None:
    trend = Trend.of(STEPS, np.array([2.0, 0.2, math.nan]), np.full(3, math.nan))
    assert (trend.last, trend.broken) == (0.2, False)
    assert trend.change == pytest.approx(1)


def test_a_change_is_that_between_magnitudes_that_are_not_zero() -> None:
    warm_up = Trend.of(STEPS, np.array([0.0, 0.001, 0.1]), np.zeros(3))
    assert (warm_up.first, warm_up.grew, warm_up.change) == (0, True, pytest.approx(2))
    assert not Trend.of(STEPS, np.array([0.1, 0.01, 0.0]), np.zeros(3)).grew


def test_an_infinity_is_the_largest_change() -> None:
    assert Trend.of(STEPS, np.array([1.0, 1.0, math.inf]), np.zeros(3)).change == math.inf
    assert Trend.of(STEPS[:0], np.empty(0), np.empty(0)).slope is None


@pytest.mark.parametrize(("apart", "is_flat"), [(1e-7, True), (1e-5, False)])
def test_rounding_has_no_slope(apart: float, is_flat: bool) -> None:
    values = 3.0 * (1 + apart * np.linspace(0, 1, len(STEPS)))
    assert (Trend.of(STEPS, values, np.zeros(len(STEPS))).slope == 0) is is_flat
