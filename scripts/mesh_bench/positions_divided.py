"""Programs that divide the positions of a sequence, which the rows of the batch are here."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from mesh_bench.networks import WHOLE, Loss, Program, dense, errors, on_mesh

DATA = PartitionSpec("data")


def network(how: str) -> Loss:
    """Attention of each position to all, with embedded places."""

    def part(params: Any, x: Any) -> Any:
        count = len(x)
        with jax.named_scope("embed"):
            first = 0 if how == "places of a part" else lax.axis_index("data") * count
            x = x + params["pos"][first + jnp.arange(count)]
        with jax.named_scope("attend"):
            keys = x if how == "attention to a part" else lax.all_gather(x, "data", tiled=True)
            x = jax.nn.softmax(x @ keys.T / 4) @ keys
        return dense(params, "fc3", jax.nn.relu(dense(params, "fc1", x)))

    logits = on_mesh(part, (WHOLE, DATA), out=DATA, vma=False)
    return lambda params, batch: errors(logits(params, batch["x"]), batch["y"]).mean()


PROGRAMS = {
    "attention to gathered keys": Program(network("")),
    "places of a part": Program(network("places of a part"), "first device", "data"),
    "attention to a part": Program(network("attention to a part"), "values"),
}
