"""A layer that was rewritten as a loop is the same: its iterations are no difference, and a fault in them is its."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import gradscope as gs
from tests.support.sampled import sampled

LENGTH, WIDTH, BLOCK, LAYERS = 8, 4, 2, 2

Attention = Callable[[Array, Array, Array], Array]


def whole(q: Array, k: Array, v: Array) -> Array:
    return jax.nn.softmax(q @ k.T) @ v


def in_blocks(correction: Callable[[Array], Array] = lambda factor: factor) -> Attention:
    """The softmax of Milakov and Gimelshein (arXiv:1805.02867), block by block as in FlashAttention."""

    def attention(q: Array, k: Array, v: Array) -> Array:
        def step(
            carry: tuple[Array, Array, Array], block: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array, Array], None]:
            most, total, sums = carry
            scores = q @ block[0].T
            higher = jnp.maximum(most, scores.max(-1))
            shares = jnp.exp(scores - higher[:, None])
            factor = correction(jnp.exp(most - higher))
            return (higher, total * factor + shares.sum(-1), sums * factor[:, None] + shares @ block[1]), None

        none = jnp.full(LENGTH, -1e30), jnp.zeros(LENGTH), jnp.zeros((LENGTH, WIDTH))
        blocks = k.reshape(-1, BLOCK, WIDTH), v.reshape(-1, BLOCK, WIDTH)
        (_, total, sums), _ = lax.scan(step, none, blocks)
        return sums / total[:, None]

    return attention


def captured(attention: Attention) -> gs.Dump:
    def loss(variables: dict[str, dict[str, Array]], batch: dict[str, Array]) -> Array:
        x = batch["x"]
        for number in range(LAYERS):
            with jax.named_scope(f"attention{number}"):
                q, k, v = (x @ variables[f"attention{number}"][name] for name in "qkv")
                x = x + attention(q, k, v)
            with jax.named_scope(f"act{number}"):
                x = jnp.tanh(x)
        return (x * x).sum()

    random = np.random.default_rng(0)
    kernels = {
        f"attention{number}": {name: jnp.float32(random.normal(size=(WIDTH, WIDTH))) for name in "qkv"}
        for number in range(LAYERS)
    }
    return gs.capture(loss, kernels, {"x": jnp.float32(random.normal(size=(LENGTH, WIDTH)))})


@pytest.fixture(scope="module")
def reference() -> gs.Dump:
    return captured(whole)


@pytest.mark.slow
def test_a_layer_that_was_rewritten_as_a_loop_is_the_same_either_way(reference: gs.Dump) -> None:
    rewritten = captured(in_blocks())
    for found in (gs.compare(reference, rewritten), gs.compare(rewritten, reference)):
        assert found.verdict == "same"
        alone = {row.why for row in found.rows if row.status in ("missing", "extra")}
        assert alone == {"a step between tensors that agree"}


@pytest.mark.slow
def test_a_fault_in_the_iterations_is_made_in_the_layer(reference: gs.Dump) -> None:
    found = gs.compare(reference, captured(in_blocks(lambda factor: factor * 0.9)))
    assert found.sentence.startswith("Forward first differs at `attention0` (rel_l2")
    assert "made here" in found.sentence.partition(")")[0]


@pytest.mark.slow
def test_a_gradient_that_the_iterations_cut_is_made_in_the_layer(reference: gs.Dump) -> None:
    found = gs.compare(reference, captured(in_blocks(lax.stop_gradient)))
    assert found.sentence.startswith("Backward only: forward agrees, backward first differs at `act0`")
    assert "made in `attention1`" in found.sentence.partition(")")[0]


@pytest.mark.slow
def test_a_layer_that_is_lost_in_the_iterations_of_a_loop_of_both_is_missing() -> None:
    def looped(*, kept: bool) -> gs.Dump:
        def loss(kernels: Array, batch: dict[str, Array]) -> Array:
            def step(x: Array, kernel: Array) -> tuple[Array, None]:
                if kept:
                    with jax.named_scope("limit"):
                        x = jnp.clip(x, -1e9, 1e9)
                with jax.named_scope("dense"):
                    return jnp.tanh(x @ kernel), None

            with jax.named_scope("blocks"):
                x, _ = lax.scan(step, batch["x"], kernels)
            return (x * x).sum()

        kernels = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH))
        return gs.capture(loss, jnp.float32(kernels), {"x": jnp.ones((LENGTH, WIDTH))})

    found = gs.compare(looped(kept=True), looped(kept=False))
    assert found.verdict == "different"
    assert found.sentence.endswith("tensors only in the reference.")


KERNELS = [np.random.default_rng(number).normal(size=(WIDTH, WIDTH)).astype(np.float32) for number in range(4)]
READ = np.random.default_rng(9).normal(size=(LENGTH, WIDTH)).astype(np.float32)


@cache
def unrolled() -> gs.Dump:
    def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
        x = batch["x"]
        for name, kernel in variables.items():
            with jax.named_scope(name):
                x = jnp.tanh(x @ kernel)
        with jax.named_scope("head"):
            return jnp.square(x).mean()

    return gs.capture(loss, {f"layers.{number}": each for number, each in enumerate(KERNELS)}, {"x": READ})


@cache
def scanned(*, backwards: bool = False, first: int = 0, last: int = 4) -> gs.Dump:
    """The same layers in a scan, which takes the last of them first, or leaves some out."""

    def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
        def body(x: Array, kernel: Array) -> tuple[Array, None]:
            with jax.named_scope("dense"):
                return jnp.tanh(x @ kernel), None

        with jax.named_scope("layers"):
            x, _ = lax.scan(body, batch["x"], variables["layers"][first:last], reverse=backwards)
        with jax.named_scope("head"):
            return jnp.square(x).mean()

    return gs.capture(loss, {"layers": np.stack(KERNELS)}, {"x": READ})


@pytest.mark.slow
def test_layers_that_a_scan_takes_from_the_last_to_the_first_are_said_to_read_each_other() -> None:
    assert gs.compare(unrolled(), scanned()).verdict == "same"
    found = gs.compare(unrolled(), scanned(backwards=True)).sentence
    assert found.startswith("Forward first differs at `layers.0`"), found
    assert "which reads `x`, and in the candidate `layers.1`" in found


def test_a_kernel_that_a_scan_leaves_out_is_named() -> None:
    found = gs.compare(unrolled(), scanned(first=1)).sentence
    assert "no gradient arrives at `layers.0` in the candidate" in found
    found = gs.compare(scanned(last=3), scanned(first=1)).sentence
    assert "the gradient of `layers` is of the slices [1, 2, 3] alone, and the reference's of [0, 1, 2]" in found


@sampled("behind", ["last", "mean"])
def test_outputs_that_a_loop_has_in_reverse_are_said_to_be(behind: str) -> None:
    def program(name: str, *, backwards: bool) -> gs.Dump:
        def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
            def step(state: Array, x: Array) -> tuple[Array, Array]:
                state = jnp.tanh(x @ variables[f"{name}_in"] + state @ variables[f"{name}_state"])
                return state, state

            with jax.named_scope(name):
                _, outputs = lax.scan(step, jnp.zeros(WIDTH), batch["x"], reverse=True)
                outputs = outputs[::-1] if backwards else outputs
            with jax.named_scope("head" if name == "rnn" else "out"):
                x = outputs[-1] if behind == "last" else outputs.mean(0) * (1.1 if backwards else 1.0)
                return jnp.square(x).mean()

        weights = dict(zip((f"{name}_in", f"{name}_state"), KERNELS, strict=False))
        return gs.capture(loss, weights, {"x": READ})

    found = gs.compare(program("rnn", backwards=False), program("cell", backwards=True))
    row = next(each for each in found.rows if (each.family, each.name) == ("activation", "rnn"))
    assert row.likely == "is the reference's in reverse along axis 0"


def test_a_mask_that_a_program_has_in_reverse_is_said_to_be() -> None:
    def program(*, backwards: bool) -> gs.Dump:
        def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
            with jax.named_scope("mask"):
                mask = batch["x"] > 0
                mask = mask[::-1] if backwards else mask
            with jax.named_scope("head"):
                return jnp.square(jnp.where(mask, batch["x"], 0.0) @ variables["head"]).mean()

        return gs.capture(loss, {"head": KERNELS[0]}, {"x": READ})

    found = gs.compare(program(backwards=False), program(backwards=True))
    row = next(each for each in found.rows if (each.family, each.name) == ("activation", "mask"))
    assert row.likely == "is the reference's in reverse along axis 0"


@pytest.mark.parametrize("examples", [2, 5])
def test_parts_that_a_program_joins_in_another_order_are_said_to_be(examples: int) -> None:
    """Of two examples and two parts, too, whose order is not that of the examples."""

    def program(*, exchanged: bool) -> gs.Dump:
        def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
            with jax.named_scope("waves"):
                angles = jnp.outer(batch["t"], jnp.arange(1.0, 4.0))
                waves = (jnp.sin(angles), jnp.cos(angles))
                waves = jnp.concatenate(waves[::-1] if exchanged else waves, 1)
            with jax.named_scope("head"):
                return jnp.square(waves @ variables["head"]).mean()

        return gs.capture(loss, {"head": np.ones((6, 2), np.float32)}, {"t": np.arange(examples, dtype=np.float32) / 3})

    found = gs.compare(program(exchanged=False), program(exchanged=True))
    assert "it has the reference's 2 parts along axis 1 in the order [1, 0]" in found.sentence, found.sentence
    assert "examples" not in found.sentence, found.sentence
