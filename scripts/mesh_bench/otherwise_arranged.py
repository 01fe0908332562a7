"""Programs in which several devices have values in another arrangement than one, and what is easily wrong there."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from mesh_bench.networks import HIDDEN, WHOLE, WIDTH, Program, dense, errors, on_mesh

DATA = PartitionSpec("data")


def accumulated(params: Any, batch: Any, *, summed: bool = False) -> Any:
    """Each device runs over the halves of its examples, which are others than the halves of the batch."""

    def part(params: Any, batch: Any) -> Any:
        def step(total: Any, half: Any) -> tuple[Any, None]:
            x = jax.nn.relu(dense(params, "fc2", jax.nn.relu(dense(params, "fc1", half["x"]))))
            return total + errors(dense(params, "fc3", x), half["y"]).mean() / 2, None

        halves = {name: batch[name].reshape(2, -1, *batch[name].shape[1:]) for name in ("x", "y")}
        total, _ = lax.scan(step, 0.0, halves)
        return (lax.psum if summed else lax.pmean)(total, "data")

    return on_mesh(part, (WHOLE, DATA), vma=False)(params, batch)


def gated(params: Any, batch: Any) -> Any:
    """A product has the features of two layers, of each device a part: those of the layers alternate then."""
    both = params["fc1"]["kernel"].reshape(WIDTH, 2, HIDDEN // 2)

    def part(params: Any, both: Any, batch: Any) -> Any:
        with jax.named_scope("both"):
            x = batch["x"] @ both.reshape(WIDTH, -1)
        with jax.named_scope("gate"):
            gate, up = jnp.split(x, 2, -1)
            x = lax.all_gather(jax.nn.silu(gate) * up, "data", axis=1, tiled=True)
        x = x @ params["fc2"]["kernel"][: HIDDEN // 2]
        return errors(dense(params, "fc3", x), batch["y"]).mean() / lax.axis_size("data")

    specs = (WHOLE, PartitionSpec(None, None, "data"), WHOLE)
    summed = on_mesh(lambda *parts: lax.psum(part(*parts), "data"), specs, vma=False)
    return summed(params, both, batch)


def counted(params: Any, batch: Any) -> Any:
    """A scope has the number of examples that count on a device."""

    def part(params: Any, batch: Any) -> Any:
        each = errors(dense(params, "fc3", jax.nn.relu(dense(params, "fc1", batch["x"]))), batch["y"])
        with jax.named_scope("count"):
            count = (batch["mask"] > 0).sum()
        return lax.psum((each * batch["mask"]).sum(), "data") / lax.psum(count, "data")

    return on_mesh(part, (WHOLE, DATA), vma=False)(params, batch)


def shifted(params: Any, batch: Any, *, edges: bool) -> Any:
    """Each position reads the one before, of which the first of a device is on another one."""

    def part(params: Any, batch: Any) -> Any:
        x, count = jax.nn.relu(dense(params, "fc1", batch["x"])), lax.axis_size("data")
        with jax.named_scope("shift"):
            before = jnp.zeros_like(x[:1])
            if edges:
                before = lax.ppermute(x[-1:], "data", [(n, n + 1) for n in range(count - 1)])
            x = jnp.concatenate([before, x[:-1]])
        return lax.pmean(errors(dense(params, "fc3", x), batch["y"]).mean(), "data")

    return on_mesh(part, (WHOLE, DATA), vma=False)(params, batch)


def noisy(params: Any, batch: Any, *, whole: bool) -> Any:
    """Noise is drawn for all examples, or on each device anew."""
    noise = 0.1 * jax.random.normal(jax.random.key(5), batch["x"].shape)

    def part(params: Any, noise: Any, batch: Any) -> Any:
        with jax.named_scope("noise"):
            drawn = noise if whole else 0.1 * jax.random.normal(jax.random.key(5), batch["x"].shape)
            x = batch["x"] + drawn
        return lax.pmean(errors(dense(params, "fc3", jax.nn.relu(dense(params, "fc1", x))), batch["y"]).mean(), "data")

    return on_mesh(part, (WHOLE, DATA, DATA), vma=False)(params, noise, batch)


PROGRAMS = {
    "accumulated halves": Program(accumulated),
    "a gate beside its features": Program(gated),
    "a count": Program(counted),
    "positions before": Program(partial(shifted, edges=True)),
    "noise for all": Program(partial(noisy, whole=True)),
    "a sum of accumulated halves": Program(partial(accumulated, summed=True), "factor", "data"),
    "positions before of a part": Program(partial(shifted, edges=False), "zeros", "data"),
    "noise by device": Program(partial(noisy, whole=False), "first device", "data"),
}
