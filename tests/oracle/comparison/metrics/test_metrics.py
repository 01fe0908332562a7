"""Every metric of a comparison against a second implementation: full arrays in float64, one plain formula each."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.precision import scale_of

RTOL, ATOL = 1e-3, 1e-6
FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
SMALL = {
    "float64": 2**-26,
    "float32": 2**-14,
    "float16": 2**-11,
    "bfloat16": 2**-8,
    "float8_e4m3fn": 2**-4,
    "float8_e5m2": 2**-3,
}
ALLOWANCE = {"float64": 32, "float32": 32, "float16": 1, "bfloat16": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


def columns(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, Any]:
    scale = scale_of(a.dtype.name, b.dtype.name, rtol=RTOL, atol=ATOL)
    return measure(block_pairs([a.reshape(-1)], [b.reshape(-1)]), scale).columns(a.shape)


def noisy_pair(dtype: Any, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    a = generator.standard_normal((40, 50))
    b = a * (1 + noise * generator.standard_normal(a.shape)) + 0.05 * generator.standard_normal(a.shape)
    a[3, 7], b[3, 7], a[4, 4], a[5, 5], b[5, 5] = 0.0, 1e-3, 0.25, 0.0, -0.0
    return a.astype(dtype), b.astype(dtype)


@pytest.fixture(params=FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def pair(request: pytest.FixtureRequest) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return noisy_pair(request.param)


def wide(pair: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], ...]:
    a, b = (side.astype(np.float64) for side in pair)
    return a, b, b - a


def l2(x: np.ndarray[Any, Any]) -> float:
    return math.sqrt(math.fsum((np.abs(x) ** 2).ravel()))


def test_rel_l2(pair: Any) -> None:
    a, _, d = wide(pair)
    assert columns(*pair)["rel_l2"] == pytest.approx(l2(d) / l2(a), rel=1e-12)


def test_one_minus_cosine(pair: Any) -> None:
    a, b, _ = wide(pair)
    assert columns(*pair)["1-cos"] == pytest.approx(1 - math.fsum((a * b).ravel()) / (l2(a) * l2(b)), rel=1e-11)


def test_norm_ratio(pair: Any) -> None:
    a, b, _ = wide(pair)
    assert columns(*pair)["norm_ratio"] == pytest.approx(l2(b) / l2(a), rel=1e-12)


def test_max_abs_with_its_index_and_both_values(pair: Any) -> None:
    a, b, d = wide(pair)
    at = np.unravel_index(np.abs(d).argmax(), d.shape)
    found = columns(*pair)
    assert found["max_abs"] == np.abs(d).max()
    assert tuple(found["max_abs_index"]) == tuple(map(int, at))
    assert (found["max_abs_ref"], found["max_abs_cand"]) == (a[at], b[at])


def test_max_rel_counts_only_elements_that_are_not_small(pair: Any) -> None:
    a, _, d = wide(pair)
    large = np.abs(a) >= SMALL[pair[0].dtype.name]
    assert 0 < large.sum() < a.size
    assert columns(*pair)["max_rel"] == (np.abs(d)[large] / np.abs(a)[large]).max()


def test_mismatch_is_numpys_rule(pair: Any) -> None:
    a, b, _ = wide(pair)
    expected = 1 - np.isclose(b, a, rtol=RTOL, atol=ATOL).mean()
    assert columns(*pair)["mismatch"] == pytest.approx(expected, abs=1e-15)


def test_ulps_count_the_values_in_between(pair: Any) -> None:
    def ordered(x: np.ndarray[Any, Any]) -> list[int]:
        bits = 8 * x.dtype.itemsize
        codes = [int(code) for code in x.ravel().view(f"u{x.dtype.itemsize}")]
        return [-(code - 2 ** (bits - 1)) if code >> (bits - 1) else code for code in codes]

    distances = [abs(x - y) for x, y in zip(*map(ordered, pair), strict=True)]
    found = columns(*pair)
    assert found["ulp_max"] == max(distances)
    assert found["ulp_share"] == sum(each > ALLOWANCE[pair[0].dtype.name] for each in distances) / len(distances)


def test_sign_flip_is_a_share_of_the_elements_that_are_not_small(pair: Any) -> None:
    a, b = pair[0].copy(), pair[1].copy()
    b[0, :10] = -a[0, :10]
    wide_a, wide_b, _ = wide((a, b))
    large = np.abs(wide_a) >= SMALL[a.dtype.name]
    assert columns(a, b)["sign_flip"] == ((wide_a * wide_b < 0) & large).sum() / large.sum() > 0


def test_sqnr_db(pair: Any) -> None:
    a, _, d = wide(pair)
    assert columns(*pair)["sqnr_db"] == pytest.approx(20 * math.log10(l2(a) / l2(d)), rel=1e-12)


def test_bit_equal_means_the_same_bytes(pair: Any) -> None:
    a, b = pair
    assert columns(a, b)["bit_equal"] is False
    assert columns(a, a.copy())["bit_equal"] is True
    zero = np.zeros(3, a.dtype)
    assert columns(zero, -zero)["bit_equal"] is False


def test_nonfinite_mismatch_counts_positions_of_unlike_kinds() -> None:
    nan, inf = math.nan, math.inf
    a = np.array([nan, inf, -inf, 1.0, nan, inf, 1.0, 1.0, nan])
    b = np.array([nan, inf, -inf, 1.0, inf, -inf, nan, inf, 1.0])
    found = columns(a, b)
    assert found["nonfinite_mismatch"] == 5
    assert found["rel_l2"] == 0


@pytest.mark.parametrize("dtype", [*FLOATS[:4], np.complex64, np.complex128], ids=lambda dtype: np.dtype(dtype).name)
def test_metrics_are_over_positions_where_both_sides_are_finite(dtype: Any) -> None:
    a, b = noisy_pair(dtype)
    finite = np.ones(a.shape, bool)
    for side, at, value in ((a, (0, 0), np.nan), (b, (0, 1), np.inf), (a, (9, 9), -np.inf), (b, (9, 9), -np.inf)):
        side[at] = value
        finite[at] = False
    found, clean = columns(a, b), columns(a[finite], b[finite])
    worst = np.flatnonzero(finite)[clean["max_abs_index"][0]]
    assert found.pop("max_abs_index") == [int(at) for at in np.unravel_index(worst, a.shape)]
    assert (found.pop("nonfinite_mismatch"), clean.pop("nonfinite_mismatch")) == (2, 0)
    del clean["max_abs_index"]
    for name in ("rel_l2", "1-cos", "norm_ratio", "sqnr_db"):
        assert found.pop(name) == pytest.approx(clean.pop(name), rel=1e-12)
    assert found == clean


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_tensors_are_compared_by_magnitudes_of_the_difference(dtype: Any) -> None:
    a, b = (x + 1j * y for x, y in zip(noisy_pair(dtype), noisy_pair(dtype, seed=1), strict=True))
    wide_a, wide_b = a.astype(np.complex128), b.astype(np.complex128)
    d = np.abs(wide_b - wide_a)
    at = np.unravel_index(d.argmax(), d.shape)
    large = np.abs(wide_a) >= SMALL["float32" if dtype is np.complex64 else "float64"]
    found = columns(a, b)
    assert found["rel_l2"] == pytest.approx(l2(d) / l2(wide_a), rel=1e-12)
    assert found["1-cos"] == pytest.approx(1 - (wide_a.conj() * wide_b).real.sum() / l2(wide_a) / l2(wide_b), rel=1e-9)
    assert found["max_abs"] == pytest.approx(d.max(), rel=1e-12)
    assert found["max_abs_ref"] == [wide_a[at].real, wide_a[at].imag]
    assert found["max_rel"] == pytest.approx((d[large] / np.abs(wide_a)[large]).max(), rel=1e-12)
    assert found["mismatch"] == (d > ATOL + RTOL * np.abs(wide_a)).mean()
    assert {"ulp_max", "ulp_share", "sign_flip"}.isdisjoint(found)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, ml_dtypes.int4])
def test_integers_are_subtracted_exactly(dtype: Any) -> None:
    limits = ml_dtypes.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    a, b = np.array([0, low, high, 1], dtype), np.array([0, high, high - 1, 1], dtype)
    found = columns(a, b)
    assert found["max_abs"] == high - low
    assert (found["max_abs_index"], found["max_abs_ref"], found["max_abs_cand"]) == ([1], low, high)
    assert found["rel_l2"] == pytest.approx(math.hypot(high - low, 1) / math.hypot(low, high, 1), rel=1e-12)
    assert {"ulp_max", "sign_flip", "max_rel"}.isdisjoint(found)


def test_a_difference_beyond_the_digits_of_float64_is_one() -> None:
    found = columns(np.array([2**62]), np.array([2**62 + 1]))
    assert found["max_abs"] == 1
    assert found["rel_l2"] == 2.0**-62


def test_booleans_are_compared_as_zero_and_one() -> None:
    found = columns(np.array([True, True, False, False]), np.array([True, False, True, False]))
    assert found["rel_l2"] == 1
    assert found["mismatch"] == 0.5


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0.0, 0.0], [-0.0, 0.0], {"rel_l2": 0, "1-cos": 0, "norm_ratio": 1, "sqnr_db": math.inf, "max_rel": 0}),
        ([0.0, 0.0], [3.0, 4.0], {"rel_l2": math.inf, "1-cos": 1, "norm_ratio": math.inf, "sqnr_db": -math.inf}),
        ([3.0, 4.0], [0.0, 0.0], {"rel_l2": 1, "1-cos": 1, "norm_ratio": 0, "sqnr_db": 0, "max_abs": 4}),
        ([3.0, 4.0], [-3.0, -4.0], {"rel_l2": 2, "1-cos": 2, "norm_ratio": 1, "sign_flip": 1}),
        ([], [], {"rel_l2": 0, "mismatch": 0, "max_abs": 0, "bit_equal": True}),
    ],
)
def test_quotients_of_nothing(a: list[float], b: list[float], expected: dict[str, float]) -> None:
    found = columns(np.array(a), np.array(b))
    assert {name: found[name] for name in expected} == expected


def test_a_pair_of_two_dtypes_is_measured_in_ulps_of_the_coarser_one() -> None:
    a = np.array([1.0, 2.0, 1e30], np.float32)
    b = np.array([1 + 2**-7, 2.0, np.inf], ml_dtypes.bfloat16)
    assert columns(a, b)["ulp_max"] == 1
    assert columns(b, a)["ulp_max"] == 1
    # Beyond the range of the coarser dtype its largest number is the nearest.
    assert columns(np.array([1e6], np.float32), np.array([65504], np.float16))["ulp_max"] == 0


@pytest.mark.parametrize("power", [-1060, -600, 600, 1020])
def test_norms_outside_the_range_of_squares_have_ratios(power: int) -> None:
    a, b = np.array([1.0, 0.5, -0.75, 0.25]), np.array([1.0, -0.5, -1.25, 0.5])
    zeros = np.zeros(1 << 17)
    scaled_a, scaled_b = (np.concatenate([zeros, np.ldexp(side, power), zeros]) for side in (a, b))
    plain, scaled = columns(a, b), columns(scaled_a, scaled_b)
    for name in ("rel_l2", "1-cos", "norm_ratio", "sqnr_db"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-14)
