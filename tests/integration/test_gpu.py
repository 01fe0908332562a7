"""What only a GPU can show: the whole chain on a device that is not the host. Skipped, loudly, where there is none."""

import resource

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.execution.observation import Observation
from gradscope.instrument.statistics.core_statistics import WIDTH
from gradscope.instrument.statistics.histogram_counts import statistics_and_histogram
from models import mlp, transformer

HAS_GPU = any(device.platform == "gpu" for device in jax.devices())

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="NO GPU HERE: what gradscope does on one is NOT tested by this run"),
]


@pytest.mark.parametrize("model", [mlp, transformer])
def test_a_dump_on_the_gpu_is_the_dump_on_the_cpu_within_tolerance(model):
    variables = model.init(jax.random.key(0))
    batch = model.batch(jax.random.key(1), 4)
    with jax.default_matmul_precision("highest"):
        on_gpu = gs.capture(model.loss, variables, batch)
        with jax.default_device(jax.devices("cpu")[0]):
            on_cpu = gs.capture(model.loss, *jax.device_get((variables, batch)))
    result = gs.compare(on_cpu, on_gpu, tol=1e-3)
    assert result, result.sentence


def test_what_a_gpu_computes_by_default_is_compared_as_tensorfloat32() -> None:
    variables = transformer.init(jax.random.key(0))
    batch = transformer.batch(jax.random.key(1), 4)
    by_default = gs.capture(transformer.loss, variables, batch)
    with jax.default_matmul_precision("highest"):
        exact = gs.capture(transformer.loss, variables, batch)
    result = gs.compare(exact, by_default)
    assert result, result.sentence
    assert "TensorFloat-32" in result.sentence


def test_core_statistics_are_computed_on_the_device():
    variables = transformer.init(jax.random.key(0))
    batch = transformer.batch(jax.random.key(1), 4)
    _, stats = jax.jit(gs.value_and_grad(transformer.loss))(variables, batch)
    _, tensors = jax.jit(gs.value_and_grad(transformer.loss, observe="tensors"))(variables, batch)
    for key in tensors:
        values = np.asarray(tensors[key], np.float64)
        assert float(stats[key].rms) == pytest.approx(np.sqrt((values**2).mean()), rel=1e-3, abs=1e-12), key


@pytest.mark.parametrize("shape", [(), (3,), (64, 5, 7), (1 << 20,)])
def test_statistics_and_histograms_on_the_device_are_those_on_the_host(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, shape).astype(np.float32)
    if values.size > 3:
        values.flat[:4] = [np.nan, np.inf, 0.0, -np.inf]
    on_device = jax.jit(statistics_and_histogram)(values)
    with jax.default_device(jax.devices("cpu")[0]):
        on_host = np.asarray(jax.jit(statistics_and_histogram)(values))
    np.testing.assert_allclose(on_device[:WIDTH], on_host[:WIDTH], rtol=1e-5)
    np.testing.assert_array_equal(on_device[WIDTH:], on_host[WIDTH:])


def test_what_is_read_of_the_gpu_does_not_stay_on_the_host() -> None:
    value = jax.random.normal(jax.random.key(0), (4, 1 << 22))
    jax.block_until_ready(value)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        for at in ((), (3,)):
            found = Observation(value=value, at=at).under_way().full()
            assert found.shape == value.shape[len(at) :]
            assert float(found.ravel()[-1]) == pytest.approx(float(value[-1, -1]))
    arrays = [value + number for number in range(16)]
    for each in arrays:
        Observation(value=each).under_way().full()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * (value.nbytes >> 10)  # of 16 arrays, each of 64 MiB


def test_observing_on_the_gpu_does_not_change_the_gradients():
    variables = transformer.init(jax.random.key(0))
    batch = transformer.batch(jax.random.key(1), 4)
    dump = gs.capture(transformer.loss, variables, batch, self_check=True)
    assert dump.manifest.self_check["beyond_rounding"] == []
