"""The parts that programs on a mesh are made of. The number of devices is that of the process, which may be one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

Loss: TypeAlias = Callable[[Any, Any], Any]
WHOLE = PartitionSpec()
WIDTH, HIDDEN, CLASSES, POSITIONS = 16, 32, 8, 64


class Program(NamedTuple):
    """A program, with the kind of fault that it has and the axis of the mesh; "" for a right one.

    With `ops` each operation is dumped, as with `--ops`.
    """

    loss: Loss
    kind: str = ""
    axis: str = ""
    ops: bool = False


def mesh(*, two: bool = False) -> Mesh:
    """Returns a mesh of all devices: with one axis, `data`, or with `model`, of two, beside it."""
    count = jax.device_count()
    shape = {"data": count // min(2, count), "model": min(2, count)} if two else {"data": count}
    return jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))


def init(key: Any) -> Any:
    """Returns the parameters of three dense layers, and of positions."""
    keys = jax.random.split(key, 7)
    sizes = {"fc1": (WIDTH, HIDDEN), "fc2": (HIDDEN, HIDDEN), "fc3": (HIDDEN, CLASSES)}
    layers = {
        name: {
            "kernel": jax.random.normal(keys[n], size) * (2 / size[0]) ** 0.5,
            "bias": 0.1 * jax.random.normal(keys[n + 3], size[1:]),
        }
        for n, (name, size) in enumerate(sizes.items())
    }
    return {**layers, "pos": jax.random.normal(keys[6], (POSITIONS, WIDTH))}


def batch(key: Any, size: int) -> Any:
    """Returns inputs, classes, and a mask of examples that count."""
    keys = jax.random.split(key, 3)
    return {
        "x": jax.random.normal(keys[0], (size, WIDTH)),
        "y": jax.random.randint(keys[1], (size,), 0, CLASSES),
        "mask": (jax.random.uniform(keys[2], (size,)) < 0.6).astype(jnp.float32),
    }


def dense(params: Any, name: str, x: Any) -> Any:
    """Returns a dense layer's output."""
    with jax.named_scope(name):
        return x @ params[name]["kernel"] + params[name]["bias"]


def normalised(x: Any, axis: str | None = None) -> Any:
    """Returns features normalised by the statistics of the batch, over an axis of the mesh where one is named."""
    with jax.named_scope("norm"):
        mean, square = x.mean(0), (x * x).mean(0)
        if axis is not None:
            mean, square = jax.lax.pmean(mean, axis), jax.lax.pmean(square, axis)
        return (x - mean) / jnp.sqrt(square - mean * mean + 1e-5)


def errors(logits: Any, classes: Any) -> Any:
    """Returns the cross-entropy of each example."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], -1)[:, 0]


def on_mesh(function: Callable[..., Any], specs: Any, *, out: Any = WHOLE, two: bool = False, vma: bool = True) -> Loss:
    """Returns a function of each device's part of some arguments as a function of the whole ones."""

    def call(*arguments: Any) -> Any:
        mapped = partial(jax.shard_map, mesh=mesh(two=two), in_specs=specs, out_specs=out, check_vma=vma)
        return mapped(function)(*arguments)

    return call


def identity(backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the identity with a backward rule of its own."""
    function: Any = jax.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, None), lambda _, arrived: (backward(arrived),))
    return function
