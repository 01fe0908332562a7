"""Steps of a coupling, mistakes that are made in all steps of a name, and features that are joined in another order."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison import Comparison
from tests.support.sampled import sampled

ROWS, HALF, WIDTH = 4, 3, 8

#: The names of the ports.
PORTED = {"first": "Dense_0", "head": "Dense_1", "coupled": "Coupling_0", "norm": "RMSNorm_0"}


def _draw(seed: int, *size: int) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def _compared(loss: Any, weights: Any, inputs: Any) -> Comparison:
    """The comparison of a program that has scopes for all steps with one that has its own names and few scopes."""

    def named(port: bool) -> Any:
        return lambda name: (
            (jax.named_scope(PORTED[name]) if name in PORTED else nullcontext()) if port else jax.named_scope(name)
        )

    def ported(own: Any, batch: Any) -> Any:
        return loss({name: own[PORTED.get(name, name)] for name in weights}, batch, scope=named(True), port=True)

    one = gs.capture(lambda *each: loss(*each, scope=named(False), port=False), weights, inputs, origins=False)
    own = {PORTED.get(name, name): value for name, value in weights.items()}
    return gs.compare(one, gs.capture(ported, own, inputs, origins=False))


COUPLING = {"inner": _draw(0, HALF, WIDTH), "scale": _draw(1, WIDTH, HALF) / 4, "shift": _draw(2, WIDTH, HALF) / 4}
LAYERS = {"first": _draw(3, 4, 2 * HALF), "head": _draw(4, 2 * HALF, 2)}


def _coupled(fault: str) -> Comparison:
    """Affine couplings, whose steps only the reference has scopes for."""

    def loss(weights: Any, batch: Any, *, scope: Any, port: bool) -> Any:
        own = fault if port else ""
        with scope("first"):
            x = batch["x"] @ weights["first"]
        kept, changed = x[:, :HALF], x[:, HALF:]
        with scope("inner"):
            inner = kept @ weights["inner"]
            inner = jax.nn.gelu(inner) if own == "activation" else jax.nn.relu(inner)
        one, other = ("shift", "scale") if own == "swapped" else ("scale", "shift")
        with scope("scale"):
            scale = inner @ weights[one]
            scale = scale if own == "no tanh" else jnp.tanh(scale)
        with scope("shift"):
            shift = inner @ weights[other]
        with scope("affine"):
            changed = changed * jnp.exp(scale) + shift
        with scope("coupled"):
            x = jnp.concatenate([changed, kept], -1)
        with scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return _compared(loss, COUPLING | LAYERS, {"x": _draw(5, ROWS, 4)})


@pytest.mark.slow
@sampled(
    ("fault", "step", "words"),
    [
        (
            "activation",
            "inner",
            "the relu of the product of what it reads, and in the candidate the gelu by tanh of the",
        ),
        ("no tanh", "scale", "the tanh of the product of what it reads, and in the candidate the product"),
        ("swapped", "scale", "in the candidate the tanh of the product with the parameters of `shift`"),
    ],
)
def test_a_step_of_a_coupling_is_named(fault: str, step: str, words: str) -> None:
    assert _coupled("").verdict == "same"
    found = _coupled(fault)
    assert [row.name for row in found.blame.suspects] == [step], found.sentence
    assert words in found.sentence


def _repeated(fault: str) -> Comparison:
    """Two layers of one kind, between which nothing is compared."""
    weights = {"first": _draw(0, 4, 6), "one": _draw(1, 6, 6), "two": _draw(2, 6, 6), "head": _draw(3, 6, 2)}

    def loss(weights: Any, batch: Any, *, scope: Any, port: bool) -> Any:
        with scope("first"):
            x = jnp.tanh(batch["x"] @ weights["first"])
        for name in ("one", "two"):
            with scope(f"{name}/mix"):
                x = x @ weights[name]
            with scope(f"{name}/act"):
                x = jax.nn.silu(x) if port and fault == "activation" else jax.nn.gelu(x)
        with scope("norm"):
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True))
        with scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return _compared(loss, weights, {"x": _draw(5, ROWS, 4)})


def test_the_first_of_several_steps_is_named_in_whose_place_the_port_has_another_each_time() -> None:
    assert _repeated("").verdict == "same"
    found = _repeated("activation")
    assert [row.name for row in found.blame.suspects] == ["one/act"], found.sentence
    assert "`one/act` is the gelu by tanh of what it reads, and in the candidate the silu" in found.sentence


@cache
def _flattened(fault: str) -> Comparison:
    """An image that a dense layer flattens itself; the port has the channels last."""
    size, channels = 3, 4
    image, kernel = _draw(6, ROWS, channels, size, size), _draw(7, channels * size * size, 5)
    last = np.ascontiguousarray(kernel.reshape(channels, size, size, 5).transpose(1, 2, 0, 3).reshape(-1, 5))
    mix, head = _draw(8, channels, channels), _draw(9, 5, 2)

    def reference(weights: Any, batch: Any) -> Any:
        with jax.named_scope("mix"):
            x = jnp.einsum("bcij,cd->bdij", batch["x"], weights["mix"])
        with jax.named_scope("act"):
            x = jax.nn.relu(x)
        with jax.named_scope("dense"):
            x = jnp.tanh(x.reshape(ROWS, -1) @ weights["dense"])
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    def port(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0"):
            x = batch["x"] @ weights["Dense_0"]
        x = jax.nn.relu(x)
        x = x.transpose(0, 3, 1, 2) if fault == "flattening" else x
        with jax.named_scope("Dense_1"):
            x = jnp.tanh(x.reshape(ROWS, -1) @ weights["Dense_1"])
        with jax.named_scope("Dense_2"):
            return jnp.square(x @ weights["Dense_2"]).mean()

    one = gs.capture(reference, {"mix": mix, "dense": kernel, "head": head}, {"x": image}, origins=False)
    moved = {"x": np.ascontiguousarray(image.transpose(0, 2, 3, 1))}
    return gs.compare(one, gs.capture(port, {"Dense_0": mix, "Dense_1": last, "Dense_2": head}, moved, origins=False))


@pytest.mark.slow
def test_the_layer_that_flattens_in_another_order_is_named_and_not_the_step_before_it() -> None:
    assert _flattened("").verdict == "same"
    found = _flattened("flattening")
    assert not found.blame.suspects, found.sentence
    assert found.sentence.startswith("Forward first differs at `dense` (rel_l2"), found.sentence
