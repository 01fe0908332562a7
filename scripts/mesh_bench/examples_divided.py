"""Programs that divide the examples of a batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from mesh_bench.networks import WHOLE, Loss, Program, dense, errors, identity, mesh, normalised, on_mesh

DATA = PartitionSpec("data")


def network(how: str) -> Loss:
    """A network of three layers, with what the word says in it."""
    passed = {
        "summed backwards": identity(lambda arrived: lax.psum(arrived, "data")),
        "averaged backwards": identity(lambda arrived: arrived / lax.psum(1.0, "data")),
    }

    def part(params: Any, batch: Any) -> Any:
        x = dense(params, "fc1", batch["x"])
        if "norm" in how:
            x = normalised(x, None if how == "norm of a part" else "data")
        x = jax.nn.relu(x)
        if "mask" in how:
            x = dropped(x, by_device=how == "a mask by device")
        x = jax.nn.relu(dense(params, "fc2", passed[how](x) if how in passed else x))
        return reduced(how, errors(dense(params, "fc3", x), batch["y"]), batch["mask"])

    return on_mesh(part, (WHOLE, DATA), vma=how not in {*passed, "the loss of a part"})


def dropped(x: Any, *, by_device: bool) -> Any:
    """Returns values of which a random mask, drawn on each device, drops a fifth."""
    with jax.named_scope("drop"):
        key = jax.random.key(3)
        key = jax.random.fold_in(key, lax.axis_index("data")) if by_device else key
        return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0)


def reduced(how: str, each: Any, mask: Any) -> Any:
    """Returns the loss of the errors of a device's examples."""
    if how == "means of counted examples":
        return lax.pmean((each * mask).sum() / mask.sum(), "data")
    if how == "counted examples":
        return lax.psum((each * mask).sum(), "data") / lax.psum(mask.sum(), "data")
    if how == "the loss of a part":
        return each.mean()
    return (lax.psum if how == "a sum of means" else lax.pmean)(each.mean(), "data")


def contrastive(params: Any, batch: Any, *, turned: bool = False) -> Any:
    """Each example is to be nearest to itself among those of all devices."""

    def part(params: Any, batch: Any) -> Any:
        made = dense(params, "fc2", jax.nn.relu(dense(params, "fc1", batch["x"])))
        with jax.named_scope("keys"):
            keys = lax.all_gather(made, "data", tiled=True)
            keys = jnp.roll(keys, len(made), 0) if turned and len(keys) > len(made) else keys
        with jax.named_scope("scores"):
            scores = made @ keys.T / 8
        own = lax.axis_index("data") * len(made) + jnp.arange(len(made))
        return lax.pmean(errors(scores, own).mean(), "data")

    return on_mesh(part, (WHOLE, DATA), vma=False)(params, batch)


def ring(params: Any, batch: Any, *, back: bool = True) -> Any:
    """Features are on the next device in between."""

    def part(params: Any, batch: Any) -> Any:
        x, count = jax.nn.relu(dense(params, "fc1", batch["x"])), lax.axis_size("data")
        with jax.named_scope("moved"):
            x = lax.ppermute(x, "data", [(n, (n + 1) % count) for n in range(count)])
        if back:
            with jax.named_scope("back"):
                x = lax.ppermute(x, "data", [(n, (n - 1) % count) for n in range(count)])
        return lax.pmean(errors(dense(params, "fc3", x), batch["y"]).mean(), "data")

    return on_mesh(part, (WHOLE, DATA), vma=False)(params, batch)


def scanned(params: Any, batch: Any) -> Any:
    """A scan of layers runs on each device."""

    def part(params: Any, batch: Any) -> Any:
        def step(x: Any, kernel: Any) -> tuple[Any, Any]:
            with jax.named_scope("block"):
                return jnp.tanh(x @ kernel + x), x.mean()

        x, _ = lax.scan(step, dense(params, "fc1", batch["x"]), jnp.stack([params["fc2"]["kernel"]] * 4) / 4)
        return lax.pmean(errors(dense(params, "fc3", x), batch["y"]).mean(), "data")

    return on_mesh(part, (WHOLE, DATA))(params, batch)


def compiled(params: Any, batch: Any, *, constrained: bool) -> Any:
    """The compiler divides the program."""
    x = lax.with_sharding_constraint(batch["x"], NamedSharding(mesh(), DATA)) if constrained else batch["x"]
    x = jax.nn.relu(normalised(dense(params, "fc1", x)))
    return errors(dense(params, "fc3", jax.nn.relu(dense(params, "fc2", x))), batch["y"]).mean()


PROGRAMS = {
    **{how: Program(network(how)) for how in ("means", "norm", "counted examples")},
    "contrastive": Program(contrastive),
    "a ring and back": Program(ring),
    "a scan of layers": Program(scanned),
    "divided by the compiler": Program(partial(compiled, constrained=True)),
    "without a mesh": Program(partial(compiled, constrained=False)),
    "norm of a part": Program(network("norm of a part"), "statistics", "data"),
    "a mask": Program(network("a mask"), "zeros", "data"),
    "a mask by device": Program(network("a mask by device"), "zeros", "data"),
    "means of counted examples": Program(network("means of counted examples"), "weights", "data"),
    "a sum of means": Program(network("a sum of means"), "factor", "data"),
    "the loss of a part": Program(network("the loss of a part"), "not reduced", "data"),
    "summed backwards": Program(network("summed backwards"), "summed", "data"),
    "averaged backwards": Program(network("averaged backwards"), "factor", "data"),
    "contrastive with turned keys": Program(partial(contrastive, turned=True), "order", "data"),
    "a ring and not back": Program(partial(ring, back=False), "order", "data"),
}
