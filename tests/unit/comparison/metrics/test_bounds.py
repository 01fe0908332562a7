"""What statistics prove about a difference: never more than is there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradscope.comparison.metrics.bounds import Bound, least_rel_l2
from gradscope.stats.tensor_stats import tensor_stats

Array = np.ndarray[Any, Any]
arrays = hnp.arrays(np.float64, 9, elements=st.floats(-1e3, 1e3, width=32))


def bound(ref: Array, cand: Array) -> Bound:
    found = least_rel_l2(tensor_stats(ref).to_json(), tensor_stats(cand).to_json())
    assert found is not None
    return found


@pytest.mark.slow
@given(arrays, arrays)
def test_the_bound_is_never_above_the_truth(ref: Array, cand: Array) -> None:
    norm = float(np.linalg.norm(ref))
    truth = float(np.linalg.norm(cand - ref)) / norm if norm else math.inf * bool(cand.any()) if cand.any() else 0.0
    assert bound(ref, cand).rel_l2 <= truth * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "cand",
    [[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, -1.0], [1.0, 1.0, 0.0, 0.1], [1.2, 0.748, 0.0, 0.0]],
    ids=["l2", "mean", "std", "max"],
)
def test_a_difference_shows_in_one_statistic_or_another(cand: list[float]) -> None:
    assert bound(np.array([1.0, 1.0, 0.0, 0.0]), np.array(cand)).rel_l2 > 1e-3


def test_the_norm_ratio_is_known() -> None:
    assert bound(np.ones(4), 3 * np.ones(4)).norm_ratio == pytest.approx(3)
    assert bound(np.zeros(4), np.zeros(4)).norm_ratio == 1


@pytest.mark.parametrize("broken", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0]])
def test_elements_that_are_not_finite_are_counted_by_kind(broken: list[float]) -> None:
    assert bound(np.array([1.0, 1.0]), np.array(broken)).rel_l2 == math.inf
    assert bound(np.array([math.inf, 1.0]), np.array([-math.inf, 1.0])).rel_l2 == math.inf
    assert bound(np.array(broken), np.array(broken)).rel_l2 == 0


def test_integers_are_compared_by_extremes_and_zeros() -> None:
    assert bound(np.array([0, 5]), np.array([0, 5])) == Bound(rel_l2=0.0)
    assert bound(np.array([0, 5, 5]), np.array([0, 0, 5])).rel_l2 == math.inf


def test_nothing_in_common_proves_nothing() -> None:
    assert least_rel_l2({}, tensor_stats(np.ones(3)).to_json()) is None


@pytest.mark.parametrize(
    ("ref", "cand", "statistic"),
    [
        ([3.0, 4.0], [6.0, 8.0], "l2"),
        ([1.0, -1.0] * 8, [1.0] * 16, "mean"),
        ([1.0, 0.0], [math.nan, 0.0], "nan"),
        ([2, 5], [2, 7], "max"),
        ([1.0, 2.0], [1.0, 2.0], ""),
    ],
)
def test_the_statistic_that_shows_a_bound_is_known(ref: list[float], cand: list[float], statistic: str) -> None:
    assert bound(np.array(ref), np.array(cand)).statistic == statistic
