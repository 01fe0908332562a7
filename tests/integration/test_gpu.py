"""What only a GPU can show: the whole chain on a device that is not the host. Skipped, loudly, where there is none."""

import jax
import numpy as np
import pytest

import gradscope as gs
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


def test_core_statistics_are_computed_on_the_device():
    variables = transformer.init(jax.random.key(0))
    batch = transformer.batch(jax.random.key(1), 4)
    _, stats = jax.jit(gs.value_and_grad(transformer.loss))(variables, batch)
    _, tensors = jax.jit(gs.value_and_grad(transformer.loss, observe="tensors"))(variables, batch)
    for key in tensors:
        values = np.asarray(tensors[key], np.float64)
        assert float(stats[key].rms) == pytest.approx(np.sqrt((values**2).mean()), rel=1e-3, abs=1e-12), key


def test_observing_on_the_gpu_does_not_change_the_gradients():
    variables = transformer.init(jax.random.key(0))
    batch = transformer.batch(jax.random.key(1), 4)
    dump = gs.capture(transformer.loss, variables, batch, self_check=True)
    assert dump.manifest.self_check["beyond_rounding"] == []
