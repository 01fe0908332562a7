"""The statistics of several tensors together are those of all of their elements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.joined_statistics import joined_statistics
from gradscope.comparison.metrics.bounds import statistics_agree
from gradscope.dump.record import Json
from gradscope.stats import stats_of_chunks
from tests.support.dumps import dump_of


def _stats(array: Array) -> dict[str, Json]:
    return stats_of_chunks([array.reshape(-1)], shape=array.shape, dtype=str(array.dtype), tier="full").to_json()


def test_joined_statistics_are_those_of_the_joined_tensors() -> None:
    draw = np.random.default_rng(3).normal
    arrays = [draw(loc, scale, size) for loc, scale, size in ((0, 1, (5, 3)), (4, 0.1, (7,)), (-2, 3, (2, 2, 6)))]
    arrays[1][2] = 0
    whole = _stats(np.concatenate([each.reshape(-1) for each in arrays]))
    joined = joined_statistics([(_stats(each), each.size) for each in arrays])
    assert {"l1", "l2", "mean", "std", "rms", "min", "max", "amax", "zeros", "nan", "inf"} <= joined.keys()
    for name, value in joined.items():
        assert value == pytest.approx(whole[name], rel=1e-12), name


def test_tensors_without_elements_have_no_norm_together() -> None:
    assert joined_statistics([({"l2": 0.0, "mean": 0.0, "std": 0.0, "zeros": 0}, 0)] * 2) == {"zeros": 0}


def test_what_one_tensor_lacks_is_not_joined() -> None:
    (entry,) = dump_of({"param/a": np.arange(4.0)}).manifest.entries
    assert "l2" not in joined_statistics([({}, 3), (entry.stats, 4)])


def test_statistics_agree_for_every_order_of_the_elements_alone() -> None:
    array = np.random.default_rng(4).normal(size=(6, 5))
    other = array.copy()
    other[2, 3] += 1e-2
    assert statistics_agree(_stats(array), _stats(array.T[::-1].copy()), 1e-12)
    assert not statistics_agree(_stats(array), _stats(other), 1e-5)
    assert not statistics_agree(_stats(array), _stats(-array), 1e-5)
    assert not statistics_agree({"l2": math.sqrt(30)}, _stats(array), 1e-5)
