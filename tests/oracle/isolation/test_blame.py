"""Eighteen planted faults, forward and backward: each is blamed on its own layer, however the layers are wired."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import gradscope as gs
from tests.oracle.isolation.isolating import isolated, of_losses, wrong
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


@jax.custom_vjp
def wrong_backward(x: Array) -> Array:
    return x


wrong_backward.defvjp(lambda x: (x, None), lambda _, cotangent: (1.02 * cotangent,))


def network(params: Any, batch: Any, *, fault: str = "", backward: bool = False) -> Array:
    """A dense layer, a weight of two layers, a bilinear layer, a loop with a residual, a branch, and a head."""

    def made(name: str, y: Array) -> Array:
        if name != fault:
            return y
        return wrong_backward(y) if backward else 1.02 * y

    with jax.named_scope("dense"):
        x = made("dense", jnp.tanh(batch["x"] @ params["dense"]))
    with jax.named_scope("shared1"):
        a = made("shared1", jnp.tanh(x @ params["shared"]))
    with jax.named_scope("shared2"):
        c = made("shared2", jnp.sin(a @ params["shared"]))
    with jax.named_scope("bilinear"):
        x = made("bilinear", (a @ params["bilinear"]) * c + x)

    def body(x: Array, iteration: Any) -> tuple[Array, None]:
        kernel, number = iteration
        with jax.named_scope("cell"):
            y = made("loop[*]/cell", jnp.tanh(x @ kernel))
            y = jnp.where(number == 2, made("loop[2]/cell", y), y)
        with jax.named_scope("residual"):
            return made("loop[*]/residual", x + y), None

    with jax.named_scope("loop"):
        x, _ = jax.lax.scan(jax.checkpoint(body), x, (params["cell"], jnp.arange(3)))

    def taken(x: Array) -> Array:
        with jax.named_scope("branch"):
            return made("branch", 2.0 * jnp.sin(x))

    x = jax.lax.cond(batch["x"].sum() > -1e9, taken, lambda x: x, x)
    with jax.named_scope("head"):
        x = made("head", x @ params["head"])
    with jax.named_scope("loss"):
        return jnp.square(x - 1.0).mean()


LAYERS = {
    **{name: [name] for name in ("dense", "shared1", "shared2", "bilinear", "branch", "head", "loop[2]/cell")},
    **{f"loop[*]/{name}": [f"loop[{i}]/{name}" for i in range(3)] for name in ("cell", "residual")},
}
SHAPES = {"dense": (3, 4), "shared": (4, 4), "bilinear": (4, 4), "cell": (3, 4, 4), "head": (4, 2)}
RANDOM = np.random.default_rng(0)
PARAMS = {name: RANDOM.normal(scale=0.5, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
BATCH = {"x": RANDOM.standard_normal((5, 3), np.float32)}


@cache
def reference() -> gs.Dump:
    return gs.capture(network, PARAMS, BATCH, origins=False)


@sampled("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("fault", LAYERS)
def test_the_faulty_layer_alone_is_blamed(fault: str, backward: bool) -> None:
    loss = partial(network, fault=fault, backward=backward)
    # The names and shapes of the reference's dump are the candidate's: only its program differs.
    found = isolated(reference(), reference(), loss, PARAMS, BATCH)
    assert wrong(found) == LAYERS[fault]
    # A branch that is not taken hands its operand to the head, and may have sent the branch's cotangent, too.
    either = ("before head",) if (fault, backward) == ("branch", True) else ()
    assert {row.shared_with for row in found.different} == {either}
    for row in found.different:
        assert row.forward is not None
        assert (row.forward.status == "same") is backward


def sliced(params: Any, batch: Any, *, wrong_iteration: int | None = None) -> Array:
    """A loop without a value of its own between the iterations that would show which of them is wrong."""

    @jax.custom_vjp
    def mixed(x: Array, kernel: Array, number: Array) -> Array:
        return jnp.tanh(x @ kernel)

    def backward(kept: Any, cotangent: Array) -> Any:
        x, kernel, number = kept
        of_x, of_kernel = jax.vjp(lambda x, kernel: jnp.tanh(x @ kernel), x, kernel)[1](cotangent)
        return of_x, jnp.where(number == wrong_iteration, 1.5, 1.0) * of_kernel, None

    mixed.defvjp(lambda *operands: (mixed(*operands), operands), backward)

    def body(x: Array, iteration: Any) -> tuple[Array, None]:
        with jax.named_scope("mix"):
            plain = jnp.tanh(x @ iteration[0])
            return (plain if wrong_iteration is None else mixed(x, *iteration)), None

    with jax.named_scope("loop"):
        x, _ = jax.lax.scan(body, batch["x"] @ params["dense"], (params["cell"], jnp.arange(3.0)))
    return jnp.square(x).sum()


def test_a_wrong_slice_of_a_stacked_gradient_is_blamed_on_its_iteration() -> None:
    one = gs.capture(sliced, PARAMS, BATCH, origins=False)
    found = isolated(one, one, partial(sliced, wrong_iteration=1), PARAMS, BATCH)
    assert wrong(found) == ["loop[1]/mix"]
    assert [(row.vjp.name, row.shared_with) for row in found.different if row.vjp] == [("cell", ())]


def nested(params: Any, batch: Any, *, wrong_iteration: tuple[int, int] = (-1, -1)) -> Array:
    """A loop in a loop, without a value of its own that would show which iteration of the inner one is wrong."""

    def inner(x: Array, iteration: Any) -> tuple[Array, None]:
        kernel, number = iteration
        with jax.named_scope("mix"):
            fault = jnp.where(number == 3 * wrong_iteration[0] + wrong_iteration[1], 0.1, 0.0)
            return jnp.tanh(x @ (kernel + fault * (kernel - jax.lax.stop_gradient(kernel)))), None

    @jax.checkpoint
    def outer(x: Array, iteration: Any) -> tuple[Array, None]:
        with jax.named_scope("loop"):
            return jax.lax.scan(inner, x, iteration)[0], None

    numbers = jnp.arange(6.0).reshape(2, 3)
    return jnp.square(jax.lax.scan(outer, batch["x"] @ params["dense"], (params["cells"], numbers))[0]).sum()


@sampled("at", [(0, 1), (1, 2)])
def test_a_wrong_slice_that_a_loop_in_a_loop_reads_is_blamed_on_its_iteration(at: tuple[int, int]) -> None:
    params = PARAMS | {"cells": 0.3 * np.random.default_rng(0).normal(size=(2, *PARAMS["cell"].shape))}
    params = jax.tree.map(jnp.float32, params)
    one = gs.capture(nested, params, BATCH, origins=False)
    found = isolated(one, one, partial(nested, wrong_iteration=at), params, BATCH)
    assert wrong(found) == [f"loop[{at[0]}][{at[1]}]/mix"]
    assert [(row.vjp.name, row.shared_with) for row in found.different if row.vjp] == [("cells", ())]


@pytest.mark.parametrize("backward", [False, True])
def test_a_module_that_computes_more_than_its_last_layer_in_the_candidate_alone(backward: bool) -> None:
    """What the module and its last layer return is one tensor of the reference."""

    def loss(params: Any, batch: Any, *, fault: bool = False) -> Array:
        with jax.named_scope("first"):
            x = jnp.tanh(batch["x"] @ params["dense"])
        with jax.named_scope("block"):
            with jax.named_scope("dense"):
                x = x @ params["shared"]
            if fault:
                x = wrong_backward(x) if backward else 1.02 * x
        return jnp.square(x).mean()

    (row,) = of_losses(loss, partial(loss, fault=True), PARAMS, BATCH).different
    assert row.name == "block"
    assert row.forward is not None
    assert row.forward.status == ("same" if backward else "different")
