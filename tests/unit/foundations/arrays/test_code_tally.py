"""The reductions that are computed of the counts of codes are those of the elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays.passes import code_tally, compiled_pass, single_pass
from gradscope.arrays.passes.code_tally import is_tallied, reduce_codes
from gradscope.arrays.passes.native_kernel import NativeKernel
from gradscope.arrays.reductions import Moments, Reduction
from tests.support.sampled import sampled

DTYPES = [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu]


@pytest.fixture(params=["NumPy", "compiled"])
def counted_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    loading = compiled_pass._Loading()
    monkeypatch.setattr(compiled_pass, "_loading", loading)
    loading._tried = True
    if request.param == "compiled":
        pytest.importorskip("numba", reason="numba of the extra `fast` is not installed")
        loading._kernel = NativeKernel.loaded()
        assert loading._kernel is not None
    return request.param


def by_elements(array: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Reduction:
    with monkeypatch.context() as patch:
        patch.setattr(single_pass, "is_tallied", lambda _: False)
        patch.setattr(single_pass, "compiled_reduction", lambda *_, **__: None)
        return single_pass.reduce_array(array, magnitudes=True)


def assert_equal(found: Reduction, expected: Reduction) -> None:
    for name in ("zeros", "nonfinite", "extremes"):
        assert getattr(found, name) == getattr(expected, name)
    assert (found.moments is None) == (expected.moments is None)
    for name in ("count", "mean", "std", "rms") if expected.moments else ():
        moments: list[Moments | None] = [found.moments, expected.moments]
        one, other = (getattr(each, name) for each in moments)
        assert one == pytest.approx(other, rel=1e-12, abs=1e-13 * expected.moments.rms)
    assert found.magnitudes is not None
    assert expected.magnitudes is not None
    for name in ("smallest", "subnormal", "histogram"):
        assert getattr(found.magnitudes, name) == getattr(expected.magnitudes, name)
    assert found.magnitudes.total == pytest.approx(expected.magnitudes.total, rel=1e-12)


@sampled("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["every code", "random", "zeros", "constant", "not finite", "odd", "strided"])
def test_the_reductions_are_those_of_the_elements(
    counted_by: str, monkeypatch: pytest.MonkeyPatch, dtype: Any, kind: str
) -> None:
    size = np.dtype(dtype).itemsize
    every = np.arange(256**size, dtype=f"u{size}").view(dtype)
    drawn = np.abs(np.random.default_rng(0).standard_normal(6_001)).astype(dtype)
    array = {
        "every code": every,
        "random": drawn,
        "zeros": np.zeros(100, dtype),
        "constant": np.full(100, 3.0, dtype),
        "not finite": np.full(100, np.nan, dtype),
        "odd": np.tile(every, 3)[:-1],
        "strided": drawn[:6_000].reshape(50, 120).T[3:, ::2],
    }[kind]
    assert_equal(reduce_codes(array), by_elements(array, monkeypatch))


def test_large_arrays_of_narrow_floats_are_counted_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(single_pass, "reduce_codes", lambda array: counted.append(array.size) or Reduction())
    monkeypatch.setattr(code_tally, "_LARGE", 1_000)
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.int8):
        for elements in (999, 1_000):
            single_pass.reduce_array(np.ones(elements, dtype), magnitudes=True)
        single_pass.reduce_array(np.ones(1_000, dtype), magnitudes=False)
    assert counted == [1_000, 1_000]
    assert not is_tallied(np.ones(1_000, np.float32))


def test_stretches_are_counted_as_the_array(counted_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).standard_normal(5_003).astype(np.float16)
    expected = reduce_codes(array)
    monkeypatch.setattr(compiled_pass, "_COUNTED_STRETCH", 1_002)
    monkeypatch.setattr(code_tally, "_ELEMENTS", 501)
    monkeypatch.setattr(compiled_pass, "_processors", lambda: 3)
    assert reduce_codes(array) == expected
