"""The session of a run: what is still in memory when its records are written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

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
