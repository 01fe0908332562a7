"""Programs that divide features, beside the examples: the axis `model` has two devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from mesh_bench.networks import WHOLE, Loss, Program, dense, errors, identity, on_mesh

COLUMNS, ROWS = PartitionSpec(None, "model"), PartitionSpec("model", None)
SPECS = {
    "fc1": {"kernel": COLUMNS, "bias": PartitionSpec("model")},
    "fc2": {"kernel": ROWS, "bias": WHOLE},
    "fc3": {"kernel": WHOLE, "bias": WHOLE},
    "pos": WHOLE,
}


def network(how: str, *, vma: bool = True) -> Loss:
    """A layer that makes columns on each device, and one that adds up their products with rows."""
    doubled = identity(lambda arrived: lax.psum(arrived, "model"))

    def part(params: Any, batch: Any) -> Any:
        x = doubled(batch["x"]) if how == "summed at the input" else batch["x"]
        x = jax.nn.gelu(dense(params, "fc1", x))
        with jax.named_scope("fc2"):
            x = x @ params["fc2"]["kernel"]
            if how == "a bias on each device":
                x = x + params["fc2"]["bias"]
            if how not in ("terms", "a sum behind the layer"):
                x = (lax.pmean if how == "a mean of products" else lax.psum)(x, "model")
            if how not in ("a bias on each device", "a sum behind the layer"):
                x = x + params["fc2"]["bias"]
        if how == "a sum behind the layer":
            x = lax.psum(x, "model") + params["fc2"]["bias"]
        return lax.pmean(errors(dense(params, "fc3", jax.nn.relu(x)), batch["y"]).mean(), "data")

    return on_mesh(part, (SPECS, PartitionSpec("data")), two=True, vma=vma)


def residual(*, each: bool = False, reduced: bool = True) -> Loss:
    """A residual connection that each device adds, or all of them once; the loss of all examples, or of a part."""

    def part(params: Any, batch: Any) -> Any:
        with jax.named_scope("stem"):
            stream = jnp.tanh(jnp.concatenate([batch["x"], -2 * batch["x"]], axis=1))
        x = jax.nn.gelu(dense(params, "fc1", batch["x"]))
        with jax.named_scope("fc2"):
            x = x @ params["fc2"]["kernel"]
            x = lax.psum(x + stream, "model") if each else lax.psum(x, "model") + stream
            x = x + params["fc2"]["bias"]
        with jax.named_scope("fc3"):
            loss = errors(x @ params["fc3"]["kernel"] + params["fc3"]["bias"], batch["y"]).mean()
        return lax.pmean(loss, "data") if reduced else loss

    return on_mesh(part, (SPECS, PartitionSpec("data")), two=True, vma=False)


def gathered(params: Any, batch: Any) -> Any:
    """Parameters are divided among the devices, which gather them where they use them."""

    def part(params: Any, batch: Any) -> Any:
        def layer(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ lax.all_gather(params[name]["kernel"], "data", tiled=True) + params[name]["bias"]

        x = jax.nn.relu(layer("fc2", jax.nn.relu(layer("fc1", batch["x"]))))
        return lax.pmean(errors(layer("fc3", x), batch["y"]).mean(), "data")

    data = PartitionSpec("data")
    layers = {name: {"kernel": data, "bias": WHOLE} for name in ("fc1", "fc2", "fc3")}
    return on_mesh(part, ({**layers, "pos": WHOLE}, data), vma=False)(params, batch)


PROGRAMS = {
    "columns and rows": Program(network("")),
    "columns and rows, unchecked": Program(network("", vma=False)),
    "a sum behind the layer": Program(network("a sum behind the layer")),
    "gathered parameters": Program(gathered),
    "a mean of products": Program(network("a mean of products"), "factor", "model"),
    "terms": Program(network("terms", vma=False), "terms", "model"),
    "a bias on each device": Program(network("a bias on each device"), "added again", "model"),
    "a residual connection": Program(residual()),
    "a residual on each device": Program(residual(each=True), "added again", "model"),
    "a residual connection, by operations": Program(residual(), ops=True),
    "a residual on each device, by operations": Program(residual(each=True), "added again", "model", ops=True),
    "a bias on each device, by operations": Program(network("a bias on each device"), "added again", "model", ops=True),
    "terms, by operations": Program(network("terms", vma=False), "terms", "model", ops=True),
    "the loss of a part, of two axes": Program(residual(reduced=False), "not reduced", "data"),
    "summed at the input": Program(network("summed at the input", vma=False), "factor", "model"),
}
