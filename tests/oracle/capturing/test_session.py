"""The session of a run: what is still in memory when its records are written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Manifest, RunFacts
from gradscope.dump.sources.memory_dump import MemoryWriter
from gradscope.tracing.loading.model import Model

LAYER = (97, 89)


def loss(weights: Any, batch: Any) -> Any:
    with jax.named_scope("layer"):
        hidden = jnp.tanh(batch @ weights)
    return (hidden * hidden).mean()


class Watching(MemoryWriter):
    """A sink that looks for the tensors of a layer when everything has been written."""

    alive: int = -1

    def commit(self, facts: RunFacts) -> Manifest:
        self.alive = sum(array.shape == LAYER for array in jax.live_arrays())
        return super().commit(facts)


@pytest.mark.slow
def test_the_tensors_of_a_run_are_let_go_when_they_are_written() -> None:
    variables, batch = jnp.ones((31, LAYER[1])), jnp.ones((LAYER[0], 31))
    model = Model(name="model", init=lambda _: variables, batch=lambda _, __: batch, loss=loss)
    shapes = jax.eval_shape(lambda: (variables, batch))
    arguments = Arguments(shapes=shapes, make=lambda: (variables, batch), batch_size=0)
    sink = Watching()
    request = DumpRequest(reading=TensorReading(keep=False), self_check=True)
    manifest = dump_model(model, arguments, request, sink, Timings())
    assert [entry.shape for entry in manifest.entries if entry.name == "layer"] == [LAYER, LAYER]
    assert sink.alive == 0


def test_the_line_of_a_parameter_is_the_first_that_reads_it() -> None:
    def scaled(x: Any, scale: Any) -> Any:
        return x / (1.0 + jnp.abs(x)) * scale  # first

    def reading(p: Any, x: Any) -> Any:
        with jax.named_scope("head"):
            y = scaled(x, p["scale"])
            y = jax.jit(jnp.matmul)(y, p["head"].astype(jnp.float32))  # second
            return (y @ p["head"].T).sum()

    dump = gs.capture(reading, {"scale": jnp.ones((1, 4)), "head": jnp.ones((4, 3))}, jnp.ones((2, 4)))
    sources = {(each.family, each.name): each.site.source or "" for each in dump.manifest.entries}
    lines = {key: source.rpartition(":")[2] for key, source in sources.items()}
    first, second = scaled.__code__.co_firstlineno + 1, reading.__code__.co_firstlineno + 3
    assert lines["param_grad", "scale"] == str(first)
    assert lines["param", "head"] == lines["param_grad", "head"] == str(second)
