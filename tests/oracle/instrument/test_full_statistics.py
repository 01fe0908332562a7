"""The full tier inside a step: on the host and on the device, the numbers are those of a dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from gradscope.instrument.statistics import core_statistics as core
from gradscope.instrument.statistics import full_statistics as full
from gradscope.stats.core_tier import stats_from_core
from tests.support.sampled import sampled

PLACES = {
    "host": (core._on_host, full._magnitudes_on_host), "device": (core._on_device, full._magnitudes_on_device)
}  # fmt: skip

DRAWN = np.random.default_rng(0)
NORMAL = DRAWN.normal(size=3000)
TENSORS = {
    "drawn": NORMAL.reshape(2, 1500).astype(np.float32),
    "of many magnitudes": (NORMAL * 10.0 ** DRAWN.integers(-15, 15, NORMAL.size)).astype(np.float32),
    "powers of two": (2.0 ** DRAWN.integers(-126, 60, 500)).astype(np.float32),
    "not finite": np.array([1, np.nan, np.inf, -np.inf, -np.inf, 0, -3], np.float32),
    "nothing finite": np.full(3, np.nan, np.float32),
    "zeros": np.zeros(5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.float32(3.5),
    "float16": np.array([6e-8, 1e-5, 1, 0, -2], np.float16),
    "bfloat16": NORMAL.astype(ml_dtypes.bfloat16),
    "float8": NORMAL.astype(ml_dtypes.float8_e4m3fn),
}


def vector_of(array: Any, place: str) -> np.ndarray:
    def measured(x: Any) -> Any:
        return jnp.concatenate([part(core.as_bytes(x)) for part in PLACES[place]])

    return np.asarray(jax.jit(measured)(jnp.asarray(array)))


@sampled("place", PLACES)
@pytest.mark.parametrize("name", TENSORS)
def test_columns_are_those_of_a_dump(place: str, name: str) -> None:
    array = np.asarray(TENSORS[name])
    expected = gs.tensor_stats(array)
    vector = vector_of(array, place)
    found = stats_from_core(array.shape, expected.dtype, full.with_full_tier(core.core_numbers(vector), vector))
    columns = expected.to_json()
    del columns["hash"]
    assert found.tier == "full"
    assert found.histogram == expected.histogram
    numbers = {column: each for column, each in columns.items() if isinstance(each, int | float)}
    scale = expected.rms or 0.0
    assert {column: found.to_json()[column] for column in numbers} == pytest.approx(numbers, rel=1e-5, abs=1e-6 * scale)
    assert found.to_json().keys() == columns.keys()
    on_device = gs.CoreStatistics(jnp.asarray(vector))
    for column in ("l1", "amin_nz", "posinf", "neginf", "subnormal", "dynrange", "p1", "p50", "p99"):
        if column in numbers:
            assert float(getattr(on_device, column)) == pytest.approx(numbers[column], rel=1e-5)
    for dtype, share in expected.underflow.items():
        assert float(on_device.underflow[dtype]) == pytest.approx(share, abs=1e-6)


def test_sums_of_large_magnitudes_do_not_overflow() -> None:
    vector = vector_of(np.full(1000, 3e38, np.float32), "device")
    assert full.with_full_tier(core.core_numbers(vector), vector).magnitudes.total == pytest.approx(3e41, rel=1e-5)


def loss(params: Any, x: Any) -> Any:
    with jax.named_scope("dense"):
        y = jnp.tanh(x @ params["w"])
    return (y**2).mean()


PARAMS = {"w": jnp.asarray(NORMAL[:12].reshape(4, 3), jnp.float32)}
INPUTS = jnp.asarray(NORMAL[:24].reshape(6, 4), jnp.float32)


@pytest.mark.slow
def test_a_step_has_the_tier_that_is_requested_and_saves_it(tmp_path: Path) -> None:
    (_, tensors) = gs.value_and_grad(loss, observe="tensors")(PARAMS, INPUTS)
    (value, grads), seen = jax.jit(gs.value_and_grad(loss, tier="full"))(PARAMS, INPUTS)
    plain = jax.jit(jax.value_and_grad(loss))(PARAMS, INPUTS)
    np.testing.assert_allclose([value, *grads["w"].ravel()], [plain[0], *plain[1]["w"].ravel()], rtol=1e-5)
    gs.save(tmp_path / "full.npz", seen)
    with gs.load(tmp_path / "full.npz") as dump:
        assert dump.source.manifest.tier == "full"
        for key in seen:
            expected = gs.tensor_stats(np.asarray(tensors[key]))
            saved = dump.stats(key)
            assert (saved.p50, saved.subnormal) == (pytest.approx(expected.p50, rel=0.05), expected.subnormal)
            assert float(seen[key].p99) == pytest.approx(expected.p99, rel=0.05)
    assert "p99" in str(seen["param/w"])
    core_tier = gs.value_and_grad(loss)(PARAMS, INPUTS)[1]["param/w"]
    assert (core_tier.p50, core_tier.underflow) == (None, {})


@pytest.mark.slow
def test_it_composes_with_vmap_and_scan() -> None:
    step = gs.value_and_grad(loss, tier="full")
    mapped = jax.vmap(step, in_axes=(None, 0))(PARAMS, INPUTS[:, None])[1]["activation/dense"]
    one = step(PARAMS, INPUTS[2:3])[1]["activation/dense"]
    assert float(mapped.p50[2]) == pytest.approx(float(one.p50), rel=1e-5)
    assert float(mapped.underflow["float16"][2]) == float(one.underflow["float16"])
    scanned = jax.lax.scan(lambda carry, x: (carry, step(carry, x[None])[1]), PARAMS, INPUTS)[1]
    np.testing.assert_allclose(scanned["activation/dense"].l1, mapped.l1, rtol=1e-5)


def test_a_probe_takes_it(tmp_path: Path) -> None:
    (value, _), seen = gs.value_and_grad(loss, tier="full")(PARAMS, INPUTS)
    with gs.Probe(tmp_path / "run") as probe:
        probe.write(0, seen, loss=value)
    with gs.load(tmp_path / "run") as run:
        assert run.series("param/w", "l2").tolist() == pytest.approx([float(seen["param/w"].l2)])


@pytest.mark.parametrize("options", [{"tier": "half"}, {"tier": "full", "observe": "tensors"}])
def test_a_tier_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="tier"):
        gs.value_and_grad(loss, **options)
