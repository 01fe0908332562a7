"""The compiled pass gives the numbers of the NumPy pass; it is loaded when that pays, and only where it can be kept."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays.passes import compiled_pass, earlier_reductions, native_kernel
from gradscope.arrays.passes.compiled_pass import compiled_reduction, expect_reductions
from gradscope.arrays.passes.native_kernel import NativeKernel
from gradscope.arrays.reductions import Extremes, NonFinite
from gradscope.stats import TensorStats, tensor_stats
from gradscope.user_cache import cache_folder
from tests.support.sampled import sampled

#: Columns whose sums are added in another order; all others are equal.
SUMS = {"mean", "std", "rms", "l2", "l1"}


@pytest.fixture(scope="module")
def numba() -> Any:
    return pytest.importorskip("numba", reason="numba of the extra `fast` is not installed")


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> compiled_pass._Loading:
    fresh = compiled_pass._Loading()
    monkeypatch.setattr(compiled_pass, "_loading", fresh)
    return fresh


def by_both(loading: compiled_pass._Loading, array: np.ndarray, tier: Any) -> tuple[TensorStats, TensorStats]:
    """The statistics by NumPy, and by the kernel."""
    loading._tried, loading._kernel = True, None
    with_numpy = tensor_stats(array, tier=tier)
    loading._kernel = NativeKernel.loaded()
    assert compiled_reduction(array, magnitudes=tier == "full") is not None
    return with_numpy, tensor_stats(array, tier=tier)


def hard(dtype: Any, *, scale: float) -> np.ndarray:
    """Elements of any sign and many magnitudes, some of which are zero, subnormal or not finite."""
    random = np.random.default_rng(7)
    with np.errstate(over="ignore"):
        array = (random.standard_normal(300_001) * 2.0 ** random.integers(-12, 12, 300_001) * scale).astype(dtype)
    array[::7] = 0
    array[1::7000] = np.nan
    array[2::9000], array[3::9000] = -array.dtype.type(np.inf), array.dtype.type(np.inf)
    array[100_000:150_000] = 1
    return array


@pytest.mark.slow
@sampled("tier", ["full", "core"])
@sampled(
    ("dtype", "scale"),
    [
        *((np.float32, scale) for scale in (1.0, 1e-38, 1e-43, 1e34)),
        *((ml_dtypes.bfloat16, scale) for scale in (1.0, 1e-38, 1e34)),
        *((np.float16, scale) for scale in (1.0, 1e-6, 1e4)),
        (ml_dtypes.float8_e5m2, 1.0),
    ],
)
def test_the_numbers_are_those_of_numpy(numba: Any, loading: Any, dtype: Any, scale: float, tier: str) -> None:
    by_numpy, by_kernel = by_both(loading, hard(dtype, scale=scale), tier)
    expected, found = by_numpy.to_json(), by_kernel.to_json()
    if tier == "full" and np.dtype(dtype).itemsize <= 2:  # both are computed of the same counts
        assert found == expected
        return
    # In the core tier NumPy adds float32 in float32, to 1e-7.
    rounding, near_zero = (1e-12, 1e-13) if tier == "full" else (1e-5, 1e-6)
    close = {
        name: pytest.approx(expected[name], rel=rounding, abs=near_zero * by_numpy.rms) for name in SUMS & {*expected}
    }
    assert found == {**expected, **close}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_every_code_is_widened_as_numpy_does(numba: Any, loading: Any, dtype: Any) -> None:
    loading._tried, loading._kernel = True, NativeKernel.loaded()
    array = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for part in np.split(array, 1 << 10):  # each has numbers of few magnitudes
        with np.errstate(invalid="ignore"):  # NaNs that signal
            finite, nan = np.isfinite(part), np.isnan(part)
        values = part[finite].astype(np.float64)
        found = compiled_reduction(part, magnitudes=False)
        assert found is not None
        assert found.nonfinite == NonFinite(
            nan=nan.sum(), inf=(~finite & ~nan).sum(), neginf=(part[~nan] == -np.inf).sum()
        )
        assert found.zeros == (values == 0).sum()
        if values.size:
            assert found.extremes == Extremes(low=values.min() + 0.0, high=values.max() + 0.0)
            assert found.moments is not None
            assert found.moments.mean == pytest.approx(values.mean(), rel=1e-12)
            assert found.moments.rms == pytest.approx(np.sqrt((values**2).mean()), rel=1e-12)


@pytest.mark.parametrize(
    "array",
    [
        np.full(10_000, 0.1, np.float32),
        np.where(np.arange(100_000) % 4096, np.sin(np.arange(100_000)) + 100, -1e6).astype(np.float32),
        np.full(10_000, np.nan, np.float32),
        np.array([-0.0, 0.0] * 5_000, np.float32),
        np.arange(-50_000, 50_000, dtype=np.float32).reshape(100, 1000).T[3:, ::2],
        np.arange(20_000).astype(">f4"),
        np.arange(60_000).astype(ml_dtypes.bfloat16).reshape(200, 300).T[3:, ::2],
        np.frombuffer(b"." + np.arange(20_000).astype(ml_dtypes.bfloat16).tobytes(), np.uint8)[1:].view(
            ml_dtypes.bfloat16
        ),
    ],
    ids=[
        "constant",
        "first ones far from the mean",
        "no finite one",
        "zeros of both signs",
        "strided",
        "other byte order",
        "strided halves",
        "halves at an odd address",
    ],
)
def test_the_numbers_of_odd_arrays_are_those_of_numpy(numba: Any, loading: Any, array: np.ndarray) -> None:
    by_numpy, by_kernel = by_both(loading, array, "full")
    expected = by_numpy.to_json()
    close = {name: pytest.approx(expected[name], rel=1e-12) for name in SUMS & {*expected}}
    assert by_kernel.to_json() == {**expected, **close}
    assert str(by_kernel.min) == str(by_numpy.min)  # zeros have the same sign


def test_the_result_does_not_depend_on_the_number_of_threads(
    numba: Any, loading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading._tried, loading._kernel = True, NativeKernel.loaded()
    monkeypatch.setattr(compiled_pass, "_STRETCH", 10_000)
    array = hard(np.float32, scale=1.0)
    results = []
    for processors in (1, 2, 5):
        monkeypatch.setattr(compiled_pass, "_processors", lambda processors=processors: processors)
        results.append(compiled_reduction(array, magnitudes=True))
    assert results[0] == results[1] == results[2]
    assert results[0].moments.std == pytest.approx(np.nanstd(array[np.isfinite(array)].astype(np.float64)), rel=1e-12)


def test_a_small_dump_never_loads_the_kernel_and_a_large_one_does_once(
    loading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    monkeypatch.setattr(NativeKernel, "loaded", lambda: loads.append(1))
    monkeypatch.setattr(compiled_pass, "is_compiled", lambda: True)
    monkeypatch.setattr(compiled_pass, "_WORTH_LOADING", 100_000)
    for _ in range(24):
        compiled_reduction(np.ones(1024, np.float32), magnitudes=True)
    assert loads == []
    for _ in range(5):
        compiled_reduction(np.ones(1024, np.float32), magnitudes=True)
    assert loads == [1]


def test_a_process_that_knows_what_it_will_reduce_loads_the_kernel_meanwhile(
    loading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, loading_begun = [], threading.Event()
    monkeypatch.setattr(NativeKernel, "loaded", lambda: loads.append(1) or loading_begun.set())
    monkeypatch.setattr(compiled_pass, "is_compiled", lambda: True)
    monkeypatch.setattr(compiled_pass, "_WORTH_LOADING", 100_000)
    expect_reductions(99_999)
    assert not loads
    expect_reductions(100_000)
    assert loading_begun.wait(10)
    expect_reductions(100_000)
    compiled_reduction(np.ones(1024, np.float32), magnitudes=True)
    assert loads == [1]


def test_a_kernel_that_has_yet_to_be_compiled_is_to_be_worth_more(
    loading: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loads = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gradscope" / "kernels").mkdir(parents=True)
    (tmp_path / "gradscope" / "kernels" / f"{64 * '0'}-{64 * '0'}.object").touch()  # of other loops
    monkeypatch.setattr(NativeKernel, "loaded", lambda: loads.append(1))
    monkeypatch.setattr(compiled_pass, "_WORTH_LOADING", 1_000)
    monkeypatch.setattr(compiled_pass, "_WORTH_COMPILING", 8_192)
    compiled_reduction(np.ones(1024, np.float32), magnitudes=True)
    assert loads == []
    compiled_reduction(np.ones(1024, np.float32), magnitudes=True)
    assert loads == [1]


def test_the_kernel_is_compiled_once_many_processes_have_waited_for_numpy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loads: list[int] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(NativeKernel, "loaded", lambda: loads.append(1))
    loaded = []
    for _ in range(5):
        process = compiled_pass._Loading()
        process.expect(800 << 20, may_compile=True)
        process.kernel(800 << 20)  # the same bytes, which count once
        loaded.append(len(loads))
    assert loaded == [0, 0, 1, 2, 3]  # what was loaded here compiles nothing, so that each is to
    assert earlier_reductions.reduced_earlier() == 1600 << 20
    process = compiled_pass._Loading()
    process.expect(63 << 20, may_compile=True)
    assert process.kernel(1) is None
    assert earlier_reductions.reduced_earlier() == 1600 << 20
    process.expect(800 << 20, may_compile=False)  # since it takes memory
    assert process.kernel(4 << 30) is None
    assert earlier_reductions.reduced_earlier() == 2048 << 20  # which is enough
    assert len(loads) == 3


def test_no_more_is_counted_than_is_enough_and_nothing_where_the_cache_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for size in (3 << 20, 1 << 19, 9 << 20):
        earlier_reductions.count_reduced(size, 8 << 20)
    assert earlier_reductions.reduced_earlier() == 8 << 20
    (counted,) = (tmp_path / "cache" / "gradscope" / "kernels").iterdir()
    counted.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    for make in (lambda: counted.symlink_to(other), lambda: os.mkfifo(counted), counted.mkdir):
        make()
        earlier_reductions.count_reduced(5 << 20, 8 << 20)
        assert earlier_reductions.reduced_earlier() == 0
        counted.rmdir() if counted.is_dir() and not counted.is_symlink() else counted.unlink()
    assert other.read_bytes() == b"mine"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    earlier_reductions.count_reduced(5 << 20, 8 << 20)
    assert earlier_reductions.reduced_earlier() == 0


def test_what_the_core_tier_reads_counts_less(loading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeKernel, "loaded", lambda: pytest.fail("loaded"))
    monkeypatch.setattr(compiled_pass, "is_compiled", lambda: True)
    monkeypatch.setattr(compiled_pass, "_WORTH_LOADING", 5_000)
    compiled_reduction(np.ones(5_000, np.float32), magnitudes=False)


@pytest.mark.parametrize(
    "array", [np.ones(5), np.ones(5, np.complex64), np.ones(5, np.int32), np.empty((0, 3), np.float32)]
)
def test_wider_numbers_integers_complex_ones_and_none_are_numpys(numba: Any, loading: Any, array: np.ndarray) -> None:
    loading._tried, loading._kernel = True, NativeKernel.loaded()
    assert compiled_reduction(array, magnitudes=True) is None
    assert tensor_stats(array).max == (1 if array.size else None)


def test_without_numba_numpy_computes(loading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llvmlite", "numba"):  # an import fails
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(compiled_pass, "_WORTH_LOADING", 0)
    monkeypatch.setattr(compiled_pass, "is_compiled", lambda: True)
    assert tensor_stats(np.array([3.0, -4.0], np.float32)).l2 == pytest.approx(5)
    assert loading._tried
    assert loading._kernel is None


@pytest.fixture(scope="module")
def kept_object(numba: Any) -> bytes:
    """An object file that a process before this one kept."""
    assert NativeKernel.loaded() is not None
    (kept,) = cache_folder("kernels").glob("*.object")
    assert native_kernel.is_compiled()
    return kept.read_bytes()


def test_what_an_earlier_process_compiled_is_loaded_without_numba(
    kept_object: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(Path(compiled_pass.__file__).parent.rglob("*.nbc"))
    for name in ("numba", "gradscope.arrays.passes.block_kernel"):
        monkeypatch.setitem(sys.modules, name, None)
    assert NativeKernel.loaded() is not None


@pytest.mark.parametrize(
    "damage", [lambda kept: kept[:-1], lambda kept: kept[:99] + b"\0" + kept[100:], lambda kept: b""]
)
def test_a_kept_object_that_was_changed_is_compiled_again(
    kept_object: bytes, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    (kept,) = cache_folder("kernels").glob("*.object")
    kept.write_bytes(damage(kept_object))
    monkeypatch.setattr(native_kernel, "_compiled", lambda *_: kept_object[32:])
    assert NativeKernel.loaded() is not None
    assert kept.read_bytes() == kept_object


def test_a_numba_that_passes_arrays_otherwise_compiles_nothing(numba: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_kernel, "_TYPES", {**native_kernel._TYPES, "count_words": ("ptr",)})
    monkeypatch.setattr(native_kernel._Kept, "read", lambda _: None)
    assert NativeKernel.loaded() is None


def test_what_cannot_be_kept_leaves_nothing_behind(
    kept_object: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (kept,) = cache_folder("kernels").glob("*.object")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_kernel, "_compiled", lambda *_: kept_object[32:])
    (tmp_path / "gradscope" / "kernels" / kept.name).mkdir(parents=True)
    assert NativeKernel.loaded() is not None
    assert [each.name for each in (tmp_path / "gradscope" / "kernels").iterdir()] == [kept.name]
