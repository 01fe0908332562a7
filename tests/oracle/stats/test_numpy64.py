"""Every column against a second implementation: plain NumPy in float64, one element-wise formula per column."""

from __future__ import annotations

import hashlib
import math

import ml_dtypes
import numpy as np
import pytest

from gradscope.stats import TensorStats, activation_stats, stats_of_chunks, tensor_stats

FLOATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64"]
SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-6,
    "float8_e5m2": 2.0**-14,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "complex64": 2.0**-126,
}
UNDERFLOWS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
SIZES = [1, 2, 1000, (1 << 17) + 77]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def planted(name: str, size: int) -> np.ndarray:
    """Values over the dtype's whole range, with -0.0, subnormals and, where it has them, NaN and infinities planted."""
    dtype = dtype_of(name)
    info = ml_dtypes.finfo(dtype)
    random = np.random.default_rng(size)
    exponents = random.uniform(
        max(float(np.log2(float(info.tiny))), -140) - 2, min(float(np.log2(float(info.max))), 140) - 1, size
    )
    values = (random.choice([-1.0, 1.0], size) * 2.0**exponents).astype(dtype)
    if size >= 1000:
        values[10:20] = dtype.type(-0.0)
        values[20:25] = dtype.type(0.0)
        values[30:40] = info.smallest_subnormal
        values[50:57] = dtype.type(np.nan)
        if name != "float8_e4m3fn":
            values[60:63] = dtype.type(np.inf)
            values[70:75] = dtype.type(-np.inf)
    return values


def oracle_moments(values: np.ndarray) -> dict[str, float]:
    """Exact sums; scaled so that squares of float64 extremes stay in range."""
    scale = float(np.abs(values).max()) or 1.0
    unit = [value / scale for value in values.tolist()]
    mean = math.fsum(unit) / len(unit)
    square = math.fsum(value * value for value in unit)
    spread = math.fsum((value - mean) ** 2 for value in unit)
    return {
        "mean": mean * scale,
        "std": math.sqrt(spread / len(unit)) * scale,
        "rms": math.sqrt(square / len(unit)) * scale,
        "l2": math.sqrt(square) * scale,
        "l1": math.fsum(map(abs, unit)) * scale,
    }


def oracle_underflow(magnitudes: np.ndarray, target: str) -> float:
    half_of_smallest = float(ml_dtypes.finfo(dtype_of(target)).smallest_subnormal) / 2
    nonzero = magnitudes[magnitudes > 0]
    return float(np.count_nonzero(nonzero <= half_of_smallest) / nonzero.size)


def assert_matches(stats: TensorStats, values: np.ndarray, smallest_normal: float, rounding: float = 0.0) -> None:
    """Compare statistics with the oracle's, for the float64 values (to within a relative `rounding`) they are about."""
    finite = values[np.isfinite(values)]
    magnitudes = np.abs(finite)
    assert (stats.size, stats.finite) == (values.size, finite.size)
    for name, expected in oracle_moments(finite).items():
        # The mean of values that cancel is judged against their size.
        tolerance = {"abs": 1e-12 * oracle_moments(finite)["rms"]} if name == "mean" else {"rel": 1e-9, "abs": 0.0}
        assert getattr(stats, name) == pytest.approx(expected, **tolerance), name
    extremes = [finite.min(), finite.max(), magnitudes.max(), magnitudes[magnitudes > 0].min()]
    assert [stats.min, stats.max, stats.amax, stats.amin_nz] == pytest.approx(extremes, rel=rounding, abs=0)
    assert stats.zeros == np.count_nonzero(finite == 0)
    assert stats.nan == np.count_nonzero(np.isnan(values))
    assert stats.posinf == np.count_nonzero(values == np.inf)
    assert stats.neginf == np.count_nonzero(values == -np.inf)
    assert stats.inf == np.count_nonzero(np.isinf(values))
    assert stats.subnormal == np.count_nonzero((magnitudes > 0) & (magnitudes < smallest_normal))
    assert stats.dynrange == pytest.approx(math.log2(stats.amax) - math.log2(stats.amin_nz))
    assert stats.histogram is not None
    assert stats.histogram.total == np.count_nonzero(magnitudes)
    for name, percent in (("p1", 1), ("p50", 50), ("p99", 99)):
        expected = float(np.quantile(magnitudes, percent / 100, method="inverted_cdf"))
        assert getattr(stats, name) == pytest.approx(expected, rel=0.045, abs=0), name
    assert stats.underflow == {name: oracle_underflow(magnitudes, name) for name in UNDERFLOWS}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FLOATS)
def test_every_column_of_a_float_tensor(name: str, size: int) -> None:
    array = planted(name, size)
    stats = tensor_stats(array)
    assert (stats.dtype, stats.shape, stats.tier) == (name, (size,), "full")
    assert stats.hash == hashlib.sha256(array.tobytes()).hexdigest()[:32]
    assert_matches(stats, array.astype(np.float64), SMALLEST_NORMAL[name])


@pytest.mark.parametrize("name", FLOATS)
def test_the_core_tier_has_the_same_numbers_and_no_others(name: str) -> None:
    array = planted(name, 1000)
    core, full = tensor_stats(array, tier="core").to_json(), tensor_stats(array).to_json()
    full_only = {"l1", "amin_nz", "subnormal", "dynrange", "p1", "p50", "p99", "hash", "histogram", "exact_quantiles"}
    assert core == {name: value for name, value in full.items() if name not in full_only and "@" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_complex_tensor_is_judged_by_its_magnitudes(size: int) -> None:
    parts = planted("float32", 2 * size)
    array = parts[:size] + 1j * parts[size:]
    stats = tensor_stats(array)
    assert (stats.dtype, stats.complex) == ("complex64", True)
    wide = array.astype(np.complex128)
    assert_matches(stats, np.hypot(wide.real, wide.imag), SMALLEST_NORMAL["complex64"], rounding=1e-15)


@pytest.mark.parametrize("name", ["int8", "int32", "uint64", "bool", "int4", "uint4"])
def test_an_integer_tensor_has_counts_and_exact_extremes(name: str) -> None:
    dtype = dtype_of(name)
    low, high = (0, 1) if name == "bool" else (int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max))
    array = (
        np.array([high, 0, low, 0, high, 1], object).astype(np.uint64 if name == "uint64" else np.int64).astype(dtype)
    )
    columns = tensor_stats(array, hashed=False).to_json()
    zeros = 3 if low == 0 else 2
    assert columns == {"size": 6, "shape": [6], "dtype": name, "min": low, "max": high, "zeros": zeros}


@pytest.mark.parametrize("target", UNDERFLOWS)
def test_underflow_agrees_with_the_cast_itself_around_the_tie(target: str) -> None:
    tie = np.float32(float(ml_dtypes.finfo(dtype_of(target)).smallest_subnormal) / 2)
    around = np.array(
        [np.nextafter(tie, np.float32(0)), tie, np.nextafter(tie, np.float32(1)), -tie, 3 * tie], np.float32
    )
    rounded_to_zero = around.astype(dtype_of(target)).astype(np.float32) == 0
    assert tensor_stats(around).underflow[target] == rounded_to_zero.mean() == 3 / 5


@pytest.mark.parametrize("name", FLOATS)
def test_exact_quantiles_are_numpys(name: str) -> None:
    array = planted(name, 1000)
    magnitudes = np.abs(array.astype(np.float64)[np.isfinite(array.astype(np.float64))])
    stats = tensor_stats(array, exact_quantiles=True)
    expected = np.quantile(magnitudes, [0.01, 0.5, 0.99], method="inverted_cdf").tolist()
    assert [stats.p1, stats.p50, stats.p99] == expected


def test_chunks_give_what_the_whole_gives() -> None:
    array = planted("bfloat16", 3000)
    chunks = (array[start : start + 700] for start in range(0, 3000, 700))
    pieced = stats_of_chunks(chunks, shape=(30, 100), dtype="bfloat16")
    full = tensor_stats(array.reshape(30, 100))
    assert pieced.hash == full.hash
    assert_matches(pieced, array.astype(np.float64), SMALLEST_NORMAL["bfloat16"])


@pytest.mark.parametrize("name", FLOATS)
def test_dead_and_saturated_shares(name: str) -> None:
    random = np.random.default_rng(0)
    array = np.tanh(random.normal(-1.5, 1.5, (5, 7, 40))).astype(dtype_of(name))
    values = array.astype(np.float64)
    stats = activation_stats(array, primitive="tanh")
    assert stats.dead == np.mean(values.reshape(-1, 40).max(axis=0) <= 0)
    # The limit less the margin is no number of a narrow dtype, so neither side of it is in doubt.
    assert stats.saturated == np.mean(np.abs(values) > 0.99)
