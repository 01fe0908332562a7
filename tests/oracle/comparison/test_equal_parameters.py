"""Ports at initialisation: biases that are zero and gains of one are equal, and their gradients tell which is which."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

WIDTH, LAYERS = 12, 4
RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.standard_normal((16, WIDTH), np.float32)}
KERNELS = list(RANDOM.normal(scale=1 / 3, size=(2 * LAYERS, WIDTH, WIDTH)).astype(np.float32))


def normalised(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def reference(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for block in params["blocks"]:
        y = normalised(x) * block["a"]["g"][None] + block["a"]["b"][None]
        x = x + jax.nn.relu(y @ block["u"] + block["u0"][None]) @ block["v"] + block["v0"][None]
    return (x**3).mean()


def candidate(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for block in params["layers"]:
        with jax.named_scope("norm"):
            y = normalised(x) * block["norm"]["scale"][None] + block["norm"]["shift"][None]
        with jax.named_scope("wide"):
            y = jax.nn.relu(y @ block["inner"]["kernel"].T + block["inner"]["bias"][None])
        with jax.named_scope("back"):
            y = y @ block["back"]["kernel"].T + block["back"]["bias"][None]
        x = x + y
    return (x**3).mean()


def scanned(params: Any, batch: Any, *, slope: float = 0.0) -> jax.Array:
    def block(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        with jax.named_scope("norm"):
            y = normalised(x) * own["norm"]["g"][None] + own["norm"]["b"][None]
        with jax.named_scope("fc"):
            y = jax.nn.leaky_relu(y @ own["fc"]["kernel"] + own["fc"]["bias"][None], slope)
        return y, None

    x, _ = jax.lax.scan(jax.checkpoint(block), batch["x"], params["stack"])
    return (x**3).mean()


def unrolled(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for layer in range(LAYERS):
        norm, dense = params[f"norm{layer}"], params[f"fc{layer}"]
        with jax.named_scope(f"norm{layer}"):
            x = normalised(x) * norm["g"][None] + norm["b"][None]
        with jax.named_scope(f"fc{layer}"):
            x = jax.nn.relu(x @ dense["kernel"] + dense["bias"][None])
    return (x**3).mean()


def of_unrolled() -> dict[str, Any]:
    zero, one = jnp.zeros(WIDTH), jnp.ones(WIDTH)
    norms = {f"norm{layer}": {"g": one, "b": zero} for layer in range(LAYERS)}
    return norms | {f"fc{layer}": {"kernel": KERNELS[layer], "bias": zero} for layer in range(LAYERS)}


def of_scanned(params: Any) -> dict[str, Any]:
    """Returns the layers of the program without a loop, stacked."""
    layers = [{name: params[f"{name}{layer}"] for name in ("fc", "norm")} for layer in range(LAYERS)]
    return {"stack": jax.tree.map(lambda *each: jnp.stack(each), *layers)}


def of_reference() -> dict[str, Any]:
    pairs = zip(KERNELS[::2], KERNELS[1::2], strict=True)
    zero, one = jnp.zeros(WIDTH), jnp.ones(WIDTH)
    return {"blocks": [{"a": {"g": one, "b": zero}, "u": u, "u0": zero, "v": v, "v0": zero} for u, v in pairs]}


def of_candidate(params: Any) -> dict[str, Any]:
    """Returns a tree of the reference, parameters or gradients, as the candidate has it."""
    return {
        "layers": [
            {
                "back": {"bias": block["v0"], "kernel": block["v"].T},
                "inner": {"bias": block["u0"], "kernel": block["u"].T},
                "norm": {"scale": block["a"]["g"], "shift": block["a"]["b"]},
            }
            for block in params["blocks"]
        ]
    }


def gradients(loss: Callable[[Any, Any], jax.Array], params: Any) -> Any:
    return jax.jit(jax.grad(loss))(params, BATCH)


@pytest.mark.slow
def test_a_right_port_of_equal_parameters_is_the_same() -> None:
    ref = of_reference()
    expected, found = of_candidate(gradients(reference, ref)), gradients(candidate, of_candidate(ref))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6), expected, found)
    compared = gs.compare(gs.capture(reference, ref, BATCH), gs.capture(candidate, of_candidate(ref), BATCH))
    differing = [row.name for row in compared.rows if row.status == "different"]
    assert differing == []
    pairs = {match.ref: match.cand for match in compared.matches}
    for block in range(LAYERS):
        assert pairs[f"param/blocks/{block}/a/b"] == f"param/layers/{block}/norm/shift"
        assert pairs[f"param/blocks/{block}/v0"] == f"param/layers/{block}/back/bias"


@pytest.mark.slow
def test_a_right_stack_of_equal_parameters_is_the_same() -> None:
    ref = of_unrolled()
    expected, found = of_scanned(gradients(unrolled, ref)), gradients(scanned, of_scanned(ref))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6), expected, found)
    compared = gs.compare(gs.capture(unrolled, ref, BATCH), gs.capture(scanned, of_scanned(ref), BATCH))
    assert compared.verdict == "same", compared.sentence


@pytest.mark.slow
def test_a_wrong_stack_of_equal_parameters_is_paired_in_the_order_of_its_layers() -> None:
    ref = of_unrolled()
    wrong = partial(scanned, slope=0.3)
    compared = gs.compare(gs.capture(unrolled, ref, BATCH), gs.capture(wrong, of_scanned(ref), BATCH))
    assert compared.verdict == "different"
    parts = {match.ref: (match.cand, match.recipe.part) for match in compared.matches}
    for layer in range(LAYERS):
        assert parts[f"param/norm{layer}/g"] == ("param/stack/norm/g", layer)
        assert parts[f"param/norm{layer}/b"] == ("param/stack/norm/b", layer)


def summed(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for weight in params["w"]:
        x = 0.02 * x + x @ weight
    return (x**3).mean()


def with_branches(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for number, weight in enumerate(params["w"]):
        with jax.named_scope(f"block{number}"):
            with jax.named_scope("inner"):
                y = jnp.einsum("ij,nj->in", weight.T, x)
            with jax.named_scope("branch"):
                y = y.T
        x = 0.02 * x + y
    return (x**3).mean()


def test_a_sum_is_not_paired_with_a_branch_whose_value_occurs_elsewhere() -> None:
    params = {"w": KERNELS[:3]}
    compared = gs.compare(gs.capture(summed, params, BATCH), gs.capture(with_branches, params, BATCH))
    assert [row.name for row in compared.rows if row.status == "different"] == []


def in_batches(params: Any, batch: Any) -> jax.Array:
    x = batch["x"].reshape(2, 8, WIDTH)
    for weight in params["w"]:
        x = jnp.tanh(x @ weight)
    return (x**3).mean()


def by_example(params: Any, batch: Any) -> jax.Array:
    def one(x: jax.Array) -> jax.Array:
        for number, weight in enumerate(params["w"]):
            with jax.named_scope(f"block{number}"):
                with jax.named_scope("inner"):
                    y = weight.T @ x
                x = jnp.tanh(y)
        return x

    return (jax.vmap(jax.vmap(one))(batch["x"].reshape(2, 8, WIDTH)) ** 3).mean()


@pytest.mark.slow
def test_what_differs_is_compared_in_the_layout_of_what_agrees() -> None:
    params = {"w": KERNELS[:5]}
    changed = {"w": [*KERNELS[:3], -KERNELS[3], KERNELS[4]]}
    compared = gs.compare(gs.capture(in_batches, params, BATCH), gs.capture(by_example, changed, BATCH))
    differing = [row for row in compared.rows if row.status == "different"]
    assert differing
    assert [row.why for row in differing if "rel_l2" not in row.metrics] == []


def _scaled(*, port: bool, factor: float = 1.0) -> gs.Dump:
    """A layer whose scale is one for all channels, in a shape for broadcasting; a port has it in the layer's scope."""

    layers, product = (("Block_0", "Block_1"), "Dense_0") if port else (("first", "second"), "product")

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch["x"]
        for layer in layers:
            own = params[layer]
            with jax.named_scope(layer):
                scale = jnp.ones(()) if port else jnp.exp(own["scale"][0])
                with jax.named_scope(product):
                    y = x @ own[product]["kernel"]
                    y = y * jnp.exp(own["scale"][None]) if port else y
                y = y * scale
                x = jnp.tanh(factor * y)
        return (x**3).mean()

    shape = (WIDTH,) if port else (1, 1, WIDTH)
    params = {
        layer: {product: {"kernel": KERNELS[number]}, "scale": np.full(shape, 0.5, np.float32)}
        for number, layer in enumerate(layers)
    }
    return gs.capture(loss, params, BATCH, origins=False)


@pytest.mark.slow
def test_a_constant_is_that_of_another_number_of_axes_of_one_though_all_gradients_differ() -> None:
    assert gs.compare(_scaled(port=False), _scaled(port=True))
    found = gs.compare(_scaled(port=False), _scaled(port=True, factor=1.2))
    assert found.sentence.startswith("Forward first differs at `first` ("), found.sentence
    assert {row.name for row in found.rows if row.family == "param" and row.counts and not row.compared} == set()
