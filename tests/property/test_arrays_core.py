"""The reductions of the core tier equal those that NumPy computes in float64, for any array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.arrays.passes.single_pass import reduce_array

#: Scales and offsets at which float32 squares are accurate, at which they are not, and means far above the spread.
SCALES = [1.0, 1e-4, 1e-12, 1e-30, 1e12, 1e30]


@settings(max_examples=15)
@given(
    size=st.integers(1, 300_000),
    scale=st.sampled_from(SCALES),
    offset=st.sampled_from([0.0, 0.3, 1.0, 100.0, -1e4]),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
    broken=st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=3),
    seed=st.integers(0, 5),
)
def test_the_reductions_of_any_float32_array(
    *, size: int, scale: float, offset: float, zeros: float, broken: list[float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    array = ((random.standard_normal(size) + offset) * scale * (random.random(size) >= zeros)).astype(np.float32)
    array[random.integers(0, size, len(broken))] = broken
    found = reduce_array(array, magnitudes=False)
    finite = array[np.isfinite(array)].astype(np.float64)
    assert found.zeros == int((array == 0).sum())
    assert found.nonfinite is not None
    assert (found.nonfinite.nan, found.nonfinite.inf) == (int(np.isnan(array).sum()), int(np.isinf(array).sum()))
    if not finite.size:
        assert found.moments is None
        return
    assert found.extremes is not None and found.moments is not None  # noqa: PT018
    assert (found.extremes.low, found.extremes.high) == (finite.min(), finite.max())
    rms = float(np.sqrt(np.mean(finite**2)))
    assert found.moments.count == finite.size
    assert found.moments.rms == pytest.approx(rms, rel=1e-5)
    assert found.moments.mean == pytest.approx(finite.mean(), abs=1e-5 * rms)
    assert found.moments.std == pytest.approx(finite.std(), rel=1e-4, abs=1e-12 * rms)
