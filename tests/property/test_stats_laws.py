"""Laws of tensor statistics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradscope.stats import TensorStats, tensor_stats
from gradscope.stats.columns import columns_of

SHORT = hnp.array_shapes(min_dims=1, max_dims=1, min_side=0, max_side=40)
FLOAT_DTYPES = st.sampled_from([np.float16, np.float32, np.float64, np.complex64])
PAIRS = FLOAT_DTYPES.flatmap(lambda dtype: st.tuples(hnp.arrays(dtype, SHORT), hnp.arrays(dtype, SHORT)))
ANY_FLOATS = FLOAT_DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHORT))
COLUMNS = {spec.base: spec for spec in columns_of("tensor")}
ROUNDED = tuple(spec for spec in COLUMNS.values() if spec.in_sum == "rounded")
EXACT = ("finite", *(name for name, spec in COLUMNS.items() if spec.in_sum == "exact"))
QUANTILES = ("p1", "p50", "p99")
#: The numbers that are a multiple of the elements.
OWN_UNIT = COLUMNS["mean"].unit
SCALED = tuple(name for name, spec in COLUMNS.items() if spec.kind == "number" and spec.unit == OWN_UNIT)


def exact_columns(stats: TensorStats) -> dict[str, object]:
    return {name: getattr(stats, name) for name in EXACT}


def assert_moments_close(left: TensorStats, right: TensorStats) -> None:
    for spec in ROUNDED:
        scale = (right.rms or 0.0) if spec.unit == OWN_UNIT else 1.0
        found, expected = getattr(left, spec.base), getattr(right, spec.base)
        assert (found is None) == (expected is None), spec.base
        assert expected is None or found == pytest.approx(expected, rel=1e-9, abs=1e-7 * scale), spec.base


@given(PAIRS)
def test_the_sum_of_statistics_is_the_statistics_of_the_concatenation(pair: tuple[np.ndarray, np.ndarray]) -> None:
    left, right = pair
    # Closer to the largest float64, the last rounding decides whether a norm is finite.
    assume(all((part.amax or 0) < 1e307 for part in map(tensor_stats, pair)))
    merged, full = tensor_stats(left) + tensor_stats(right), tensor_stats(np.concatenate([left, right]))
    summed, expected = exact_columns(merged), exact_columns(full)
    # Exact quantiles, which subnormals of float64 need, are no sums: the sum has those of the histogram.
    within = set(QUANTILES) if full.exact_quantiles else set()
    assert {name: each for name, each in summed.items() if name not in within} == {
        name: each for name, each in expected.items() if name not in within
    }
    assert_moments_close(merged, full)
    assert (merged.shape, merged.hash) == ((left.size + right.size,), None)


@given(ANY_FLOATS)
def test_a_merge_with_nothing_changes_no_column(array: np.ndarray) -> None:
    stats, nothing = tensor_stats(array), tensor_stats(array[:0])
    assert (stats + nothing).reduction == (nothing + stats).reduction == stats.reduction


@given(ANY_FLOATS, st.randoms(use_true_random=False))
def test_the_order_of_elements_does_not_matter(array: np.ndarray, random: object) -> None:
    order = list(range(array.size))
    random.shuffle(order)
    shuffled = tensor_stats(array[order])
    assert exact_columns(shuffled) == exact_columns(tensor_stats(array))
    assert_moments_close(shuffled, tensor_stats(array))


@given(hnp.arrays(np.float32, SHORT, elements=st.floats(-1024, 1024, width=16)), st.integers(-40, 40))
def test_a_power_of_two_comes_out_of_every_moment_exactly(array: np.ndarray, exponent: int) -> None:
    scaled = tensor_stats(np.ldexp(array, exponent))
    for name in SCALED:
        before = getattr(tensor_stats(array), name)
        assert getattr(scaled, name) == (None if before is None else math.ldexp(before, exponent)), name


@given(
    st.one_of(ANY_FLOATS, hnp.arrays(st.sampled_from([np.int8, np.uint64, np.bool_]), SHORT)),
    st.booleans(),
    st.booleans(),
)
def test_json_round_trip_is_the_identity(array: np.ndarray, core: bool, exact: bool) -> None:
    stats = tensor_stats(array, tier="core" if core else "full", exact_quantiles=exact)
    text = json.dumps(stats.to_json(), allow_nan=False)
    assert "null" not in text
    back = TensorStats.from_json(json.loads(text))
    assert back == stats
    assert back.to_json() == stats.to_json()


@given(PAIRS)
def test_statistics_read_back_still_merge(pair: tuple[np.ndarray, np.ndarray]) -> None:
    stats = [tensor_stats(part) for part in pair]
    read = [TensorStats.from_json(each.to_json()) for each in stats]
    assert read[0] + read[1] == stats[0] + stats[1]


@settings(max_examples=30)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))),
    st.permutations([0, 1, 2]),
)
def test_strides_do_not_matter(array: np.ndarray, axes: list[int]) -> None:
    view = array.transpose(axes)[::-1, ::2]
    assert tensor_stats(view) == tensor_stats(np.ascontiguousarray(view))
