"""Statistics of tensors for which a naive implementation would be wrong."""

from __future__ import annotations

import math
import threading
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays import digest
from gradscope.arrays.blocks import BLOCK_ELEMENTS, blocks
from gradscope.arrays.digest import content_hash
from gradscope.arrays.reductions import Reduction
from gradscope.errors import DumpError, UsageError
from gradscope.stats import CoreNumbers, TensorStats, activation_stats, stats_from_core, tensor_stats


def test_float16_of_sixty_thousands_does_not_overflow() -> None:
    array = np.full(70_000, 6e4, np.float16)
    array[::2] *= -1
    stats = tensor_stats(array)
    assert (stats.mean, stats.std, stats.rms, stats.l1) == (0.0, 6e4, 6e4, 70_000 * 6e4)


def test_a_billion_elements_of_one_sign_sum_to_a_billion() -> None:
    # One block's statistics merged with themselves thirteen times are those of 2^30 elements.
    stats = tensor_stats(np.full(BLOCK_ELEMENTS, 0.1, np.float32))
    for _ in range(13):
        stats += stats
    tenth = float(np.float32(0.1))
    assert stats.size == 2**30
    assert (stats.mean, stats.std) == (tenth, 0.0)
    assert stats.l1 == 2**30 * tenth
    assert stats.l2 == pytest.approx(2**15 * tenth, rel=1e-12)


def test_a_small_spread_on_a_large_mean_survives() -> None:
    array = 1e8 + np.random.default_rng(0).standard_normal(300_000)
    stats = tensor_stats(array)
    assert stats.std == pytest.approx(math.sqrt(math.fsum((array - array.mean()) ** 2) / array.size), rel=1e-9)


def test_a_constant_has_no_spread_whatever_its_value() -> None:
    stats = tensor_stats(np.full(1_000_003, 0.1))
    assert (stats.mean, stats.std) == (0.1, 0.0)


def test_outliers_among_normal_values_keep_all_moments_to_nine_digits() -> None:
    array = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    array[::1000] = 3e38
    stats, wide = tensor_stats(array), array.astype(np.float64)
    mean = math.fsum(wide) / wide.size
    assert stats.mean == pytest.approx(mean, rel=1e-9)
    assert stats.std == pytest.approx(math.sqrt(math.fsum((wide - mean) ** 2) / wide.size), rel=1e-9)
    assert stats.l2 == pytest.approx(math.sqrt(math.fsum(wide**2)), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1.7e308])
def test_squares_beyond_float64_have_a_root_within_it(scale: float) -> None:
    stats = tensor_stats(np.array([scale, -scale]))
    assert (stats.mean, stats.std, stats.rms) == (0.0, pytest.approx(scale), pytest.approx(scale))


def test_opposite_ends_of_float64_merge() -> None:
    merged = tensor_stats(np.array([1.7e308])) + tensor_stats(np.array([-1.7e308] * 3))
    assert (merged.mean, merged.min, merged.max) == (pytest.approx(-0.85e308), -1.7e308, 1.7e308)


def test_one_nan_in_a_million_hides_nothing() -> None:
    array = np.ones(1_000_000, np.float32)
    array[777_777] = np.nan
    array[3] = -np.inf
    stats = tensor_stats(array)
    assert (stats.nan, stats.inf, stats.posinf, stats.neginf, stats.finite) == (1, 1, 0, 1, 999_998)
    assert (stats.mean, stats.std, stats.min, stats.max) == (1.0, 0.0, 1.0, 1.0)


def test_infinities_that_cancel_are_still_counted() -> None:
    stats = tensor_stats(np.array([np.inf, -np.inf, 2.0]))
    assert (stats.posinf, stats.neginf, stats.max) == (1, 1, 2.0)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_has_counts_only(shape: tuple[int, ...]) -> None:
    columns = tensor_stats(np.zeros(shape, np.float32), hashed=False).to_json()
    counts = {"zeros": 0, "nan": 0, "inf": 0, "posinf": 0, "neginf": 0, "subnormal": 0}
    assert columns == {
        "size": 0, "shape": list(shape), "dtype": "float32", **counts, "histogram": {"first": 0, "counts": []}
    }  # fmt: skip


def test_a_tensor_of_nans_has_counts_only() -> None:
    columns = tensor_stats(np.full(3, np.nan, np.float16)).to_json()
    assert columns["nan"] == 3
    assert not columns.keys() & {"mean", "std", "rms", "l2", "l1", "min", "max", "amax", "p50", "underflow@float16"}


def test_a_scalar_is_a_tensor_of_one_element() -> None:
    stats = tensor_stats(np.array(-2.5, np.float32))
    assert (stats.shape, stats.size, stats.mean, stats.std, stats.p50) == ((), 1, -2.5, 0.0, 2.5)


def test_zeros_are_no_magnitudes_but_count_for_quantiles() -> None:
    stats = tensor_stats(np.array([0.0, -0.0, 0.0, 8.0]))
    assert (stats.p50, stats.p99, stats.amin_nz, stats.zeros, stats.dynrange) == (0.0, 8.0, 8.0, 3, 0.0)


@pytest.mark.parametrize("scale", [1e-310, 1e-320, 1e-308])
def test_float64_subnormals_have_the_quantiles_that_numpy_computes(scale: float) -> None:
    tensor = np.linspace(-1.5, 1.5, 301) * scale
    stats = tensor_stats(tensor)
    expected = np.quantile(np.abs(tensor), [0.01, 0.5, 0.99], method="inverted_cdf")
    assert [stats.p1, stats.p50, stats.p99] == expected.tolist()
    assert TensorStats.from_json(stats.to_json()).p50 == stats.p50


def test_float32_subnormals_have_quantiles_as_good_as_any() -> None:
    magnitudes = np.float32(2.0**-149) * np.arange(1, 1001, dtype=np.float32)
    stats = tensor_stats(magnitudes)
    assert stats.subnormal == 1000
    assert stats.p50 == pytest.approx(500 * 2.0**-149, rel=0.045, abs=0)


def test_bytes_in_foreign_order_give_the_same_statistics() -> None:
    array = np.arange(10, dtype=np.float32)
    assert tensor_stats(array.astype(">f4")) == tensor_stats(array)


def test_octaves_count_every_magnitude_once() -> None:
    histogram = tensor_stats(np.array([0.75, 1.0, 1.5, 2.0, -2.5, 12.0])).histogram
    assert histogram is not None
    # An exact power of two closes the octave below it.
    assert list(histogram.octaves()) == [(-1, 2), (0, 2), (1, 1), (2, 0), (3, 1)]


def test_a_dtype_that_is_no_number_has_a_size_and_a_hash() -> None:
    columns = tensor_stats(np.array(["a", "b"])).to_json()
    assert columns.keys() == {"size", "shape", "dtype", "hash"}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_hash_is_of_the_elements_in_c_order(dtype: type) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6).astype(dtype)
    assert content_hash(array.T) == content_hash(np.ascontiguousarray(array.T)) != content_hash(array)


def test_the_largest_magnitude_of_minus_zeros_has_no_sign() -> None:
    amax = tensor_stats(np.full(3, -0.0, np.float32)).amax
    assert amax is not None
    assert math.copysign(1.0, amax) == 1.0


def test_minus_zero_hashes_apart_from_zero() -> None:
    assert content_hash(np.array([-0.0])) != content_hash(np.array([0.0]))


def test_statistics_of_different_dtypes_do_not_merge() -> None:
    with pytest.raises(UsageError, match="float32 with statistics of int8"):
        tensor_stats(np.ones(2, np.float32)) + tensor_stats(np.ones(2, np.int8))


def test_a_merge_of_both_tiers_is_of_the_core_tier() -> None:
    core, full = (tensor_stats(np.ones(3, np.float32), tier=tier) for tier in ("core", "full"))
    assert (core + full).to_json() == tensor_stats(np.ones(6, np.float32), tier="core").to_json()


def test_numbers_from_a_device_become_the_core_tier() -> None:
    array = np.array([3.0, 0.0, np.nan, -1.0, np.inf], np.float32)
    host = tensor_stats(array, tier="core")
    assert host.mean is not None
    assert host.std is not None
    assert host.rms is not None
    numbers = CoreNumbers(
        finite=3, mean=host.mean, std=host.std, rms=host.rms, minimum=-1.0, maximum=3.0, zeros=1, nan=1, inf=1
    )
    device = stats_from_core((5,), "float32", numbers).to_json()
    signs = {"posinf", "neginf"}
    assert device == {name: value for name, value in host.to_json().items() if name not in signs}


def test_a_device_that_saw_nothing_finite_has_counts_only() -> None:
    numbers = CoreNumbers(
        finite=0, mean=math.nan, std=math.nan, rms=math.nan, minimum=math.inf, maximum=-math.inf, zeros=0, nan=2, inf=0
    )
    columns = stats_from_core((2,), "float32", numbers).to_json()
    assert columns == {"size": 2, "shape": [2], "dtype": "float32", "zeros": 0, "nan": 2, "inf": 0}


def test_infinite_numbers_are_words_in_json() -> None:
    stats = tensor_stats(np.full(4, 1.7e308))
    assert (stats.l1, stats.to_json()["l1"]) == (math.inf, "Infinity")
    assert TensorStats.from_json(stats.to_json()) == stats


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("shape", "4", "expected a list of counts for shape, found str"),
        ("shape", [-1], "expected a count for shape, found a negative number"),
        ("nan", 9, "a mean over no elements"),
        ("mean", "many", "expected a number, found 'many'"),
        ("min", 99.0, "a min above their max"),
        ("amin_nz", 0.0, "amin_nz that is not above zero"),
        ("zeros", None, "expected an integer for zeros, found NoneType"),
        ("zeros", True, "expected an integer for zeros, found bool"),
        ("histogram", [1], "expected a histogram, found list"),
        ("histogram", {"first": 0}, "lack their counts"),
        ("histogram", {"first": 10**9, "counts": [1]}, "beyond the last of 32752 bins"),
    ],
)
def test_malformed_columns_are_refused(column: str, value: object, problem: str) -> None:
    columns = tensor_stats(np.arange(4, dtype=np.float32)).to_json()
    with pytest.raises(DumpError, match=problem):
        TensorStats.from_json({**columns, column: value})  # type: ignore[dict-item]


@pytest.mark.parametrize("column", ["shape", "dtype", "inf", "std", "max", "subnormal"])
def test_missing_columns_are_named(column: str) -> None:
    columns = tensor_stats(np.arange(4, dtype=np.float32)).to_json()
    del columns[column]
    with pytest.raises(DumpError, match=f"lack their {column}"):
        TensorStats.from_json(columns)


def test_units_are_dead_where_nothing_is_above_zero() -> None:
    activation = np.array([[0.0, -1.0, np.nan, 2.0], [0.0, -3.0, np.nan, -1.0]], np.float32)
    assert activation_stats(activation, primitive="max").dead == 0.5


def test_units_of_a_large_strided_activation_are_judged_over_the_whole_batch() -> None:
    activation = np.zeros((3, BLOCK_ELEMENTS, 2), np.float32)
    activation[2, -1, 1] = 1.0
    assert activation_stats(activation[:, ::-1], primitive=None).dead == 0.5


def test_a_vector_has_no_batch_to_be_dead_over() -> None:
    assert activation_stats(np.zeros(4, np.float32), primitive=None).dead is None


def test_saturation_is_within_a_hundredth_of_a_limit() -> None:
    probabilities = np.array([0.005, 0.02, 0.5, 0.995, np.nan], np.float32)
    assert activation_stats(probabilities, primitive="logistic").saturated == 2 / 5
    assert activation_stats(probabilities, primitive="tanh").saturated == 1 / 5
    assert activation_stats(probabilities, primitive="exp").saturated is None


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), np.int32), np.zeros((0, 3), np.float32), np.ones((2, 2), np.complex64)]
)
def test_shares_of_units_apply_to_real_numbers_only(array: np.ndarray) -> None:
    assert activation_stats(array, primitive="tanh") == tensor_stats(array)


@pytest.mark.parametrize("make", [np.ascontiguousarray, np.asfortranarray, lambda a: a[::-1], lambda a: a[:, ::2]])
def test_concatenated_blocks_are_the_array_in_c_order(make: object) -> None:
    array = make(np.arange(7 * 8 * 6).reshape(7, 8, 6))  # type: ignore[operator]
    for elements in (1, 6, 24, 100, 10_000):
        parts = list(blocks(array, elements))
        assert np.array_equal(np.concatenate(parts), array.reshape(-1))
        assert max(part.size for part in parts) <= elements
        if elements % 6 == 0:
            assert all(part.size % 6 == 0 for part in parts)


def test_a_large_tensor_is_hashed_while_it_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    reducing, hashed = threading.Event(), digest.content_hash
    monkeypatch.setattr(digest, "_WORTH_A_THREAD", 4_000)
    monkeypatch.setattr(digest, "content_hash", lambda array: hashed(array) if reducing.wait(10) else "")
    module = import_module("gradscope.stats.tensor_stats")
    monkeypatch.setattr(module, "reduce_array", lambda *_, **__: reducing.set() or Reduction())
    array = np.arange(1_000, dtype=np.float32)
    assert tensor_stats(array).hash == hashed(array)
