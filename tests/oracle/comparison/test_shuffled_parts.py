"""Parameters that one program cuts into blocks and packs in another order: gates in two kernels, heads side by side."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.shuffled_blocks import shuffled_blocks
from tests.support.sampled import sampled

_RANDOM = np.random.default_rng(11)


def _draw(*shape: int) -> Array:
    return _RANDOM.normal(size=shape, scale=0.5).astype(np.float32)


WIDTH, IN, HEADS, EACH = 6, 5, 3, 4
GATES = [{"ih": _draw(WIDTH, IN), "hh": _draw(WIDTH, WIDTH), "b": _draw(WIDTH)} for _ in "rzn"]
OUT, STATE, X = _draw(WIDTH, 3), _draw(2, WIDTH), _draw(2, IN)


@cache
def _gru(*, ported: bool, after: bool = False) -> Dump:
    """One step of a GRU, of which a port has two kernels for the state: that of `z` and `r`, and that of `n`.

    Args:
        ported: Whether it is the port.
        after: Whether the reset gate is applied before the product, where it belongs behind it.
    """
    r, z, n = GATES
    joined = {kind: np.concatenate([gate[kind] for gate in GATES]) for kind in ("ih", "hh", "b")}
    apart = {
        "w_i": np.concatenate([z["ih"], r["ih"], n["ih"]]).T.copy(),
        "w_zr": np.concatenate([z["hh"], r["hh"]]).T.copy(),
        "w_n": n["hh"].T.copy(),
        "b": np.concatenate([z["b"], r["b"], n["b"]]),
    }
    name, own = ("GRUCell_0", apart) if ported else ("gru", joined)

    def loss(weights: Any, batch: Any) -> Any:
        own, state = weights[name], batch["state"]
        with jax.named_scope(name):
            if ported:
                x = batch["x"] @ own["w_i"] + own["b"][None]
                z, r = jnp.split(jax.nn.sigmoid(x[:, : 2 * WIDTH] + state @ own["w_zr"]), 2, axis=-1)
                n = (r * state) @ own["w_n"] if after else r * (state @ own["w_n"])
                n = jnp.tanh(x[:, 2 * WIDTH :] + n)
            else:
                x, h = batch["x"] @ own["ih"].T + own["b"][None], state @ own["hh"].T
                r, z = jnp.split(jax.nn.sigmoid((x + h)[:, : 2 * WIDTH]), 2, axis=-1)
                n = jnp.tanh(x[:, 2 * WIDTH :] + r * h[:, 2 * WIDTH :])
            x = (1 - z) * n + z * state
        with jax.named_scope("Dense_0" if ported else "fc"):
            return jnp.square(x @ weights["out"]).mean()

    return gs.capture(loss, {name: own, "out": OUT}, {"x": X, "state": STATE}, origins=False)


@pytest.mark.slow
def test_gates_in_kernels_of_several_sizes_are_found_in_another_order() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_gru(ported=one), _gru(ported=other))
        assert found.verdict == "same", found.sentence
        assert {row.name for row in found.rows if row.family == "param" and not row.compared} == set()
    wrong = gs.compare(_gru(ported=False), _gru(ported=True, after=True))
    assert wrong.first_divergence.forward is not None, wrong.sentence
    assert wrong.first_divergence.forward.name == "gru"


CELL = {"ih": _draw(4, WIDTH, IN), "hh": _draw(4, WIDTH, WIDTH), "b_ih": _draw(4, WIDTH), "b_hh": _draw(4, WIDTH)}


@cache
def _lstm(*, ported: bool, bias: float = 1.0, forget: float = 1.0) -> Dump:
    """One step of an LSTM; a port has one kernel, other gates first, and adds one to its forget gate, as Haiku does.

    Args:
        ported: Whether it is the port.
        bias: The factor of the biases.
        forget: What the port takes from the bias of its forget gate.
    """
    i, f, g, o = range(4)
    both = bias * (CELL["b_ih"] + CELL["b_hh"]) - forget * (np.arange(4) == f)[:, None]
    gates = [i, g, f, o]
    joined = np.concatenate([np.concatenate(CELL[kind][gates]) for kind in ("ih", "hh")], axis=1)
    port = {"w": joined.T.copy(), "b": np.concatenate(both[gates]).astype(np.float32)}
    apart = {kind: np.concatenate(each) * (bias if kind[0] == "b" else 1.0) for kind, each in CELL.items()}
    name, own = (
        ("linear", port) if ported else ("lstm", {kind: each.astype(np.float32) for kind, each in apart.items()})
    )

    def loss(weights: Any, batch: Any) -> Any:
        own, (h, c) = weights[name], batch["state"]
        with jax.named_scope("core" if ported else "lstm"):
            if ported:
                gates = jnp.concatenate([batch["x"], h], axis=-1) @ own["w"] + own["b"][None]
                i, g, f, o = jnp.split(gates, 4, axis=-1)
                f = f + 1
            else:
                gates = batch["x"] @ own["ih"].T + own["b_ih"][None] + h @ own["hh"].T + own["b_hh"][None]
                i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            x = jax.nn.sigmoid(o) * jnp.tanh(c)
        with jax.named_scope("Dense_0" if ported else "fc"):
            return jnp.square(x @ weights["out"]).mean()

    return gs.capture(loss, {name: own, "out": OUT}, {"x": X, "state": (STATE, STATE[::-1].copy())}, origins=False)


@pytest.mark.slow
@sampled("bias", [1.0, 0.0])
def test_the_one_kernel_and_bias_of_a_cell_are_those_of_the_two_with_other_gates_first(bias: float) -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_lstm(ported=one, bias=bias), _lstm(ported=other, bias=bias))
        assert found.verdict == "same", found.sentence
    reasons = {row.name: row.why for row in found.rows if row.family == "param" and row.status in ("missing", "extra")}
    assert reasons["linear/b"] == "the sum of lstm/b_hh and lstm/b_ih"
    wrong = gs.compare(_lstm(ported=False, bias=bias), _lstm(ported=True, bias=bias, forget=0.0))
    assert wrong.first_divergence.forward is not None, wrong.sentence
    assert wrong.first_divergence.forward.name == "lstm"


TOKENS = _draw(2, 5, HEADS * EACH)
KERNELS: Final = [
    {name: _draw(HEADS, EACH, HEADS * EACH) for name in "qkv"} | {"o": _draw(HEADS * EACH, HEADS * EACH)}
    for _ in range(2)
]
BIASES: Final = [{name: _draw(HEADS, EACH) for name in "qkv"} for _ in range(2)]


@cache
def _heads(*, ported: bool, wrong: str = "", general: bool = False) -> Dump:
    """Two attentions: one program packs query, key and value of each head side by side, the port has a layer for each.

    Args:
        ported: Whether it is the port.
        wrong: What is wrong in the second block: the `scale` of its queries, or the `kernel` of its keys.
        general: Whether the port has an axis for the heads, as `DenseGeneral` of Flax.
    """

    def block(own: Any, x: Any, number: int) -> Any:
        if ported:
            parts: list[Any] = []
            for name in "qkv":
                with jax.named_scope(name):
                    made = jnp.tensordot(x, own[name], 1) + own[f"{name}_bias"][None, None]
                    parts.append(2 * made if (name, wrong, number) == ("q", "scale", 1) else made)
            q, k, v = (part.reshape(*x.shape[:2], HEADS, EACH) for part in parts)
        else:
            with jax.named_scope("qkv"):
                packed = x @ own["qkv"].T + own["bias"][None, None]
            q, k, v = jnp.split(packed.reshape(*x.shape[:2], HEADS, 3 * EACH), 3, axis=-1)
        shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        with jax.named_scope("o"):
            return x + jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ own["o"]

    def loss(weights: Any, x: Any) -> Any:
        for number, (name, own) in enumerate(sorted(weights.items())):
            with jax.named_scope(name):
                x = block(own, x, number)
        return jnp.square(x).mean()

    weights: dict[str, Any] = {}
    for number, kernels in enumerate(KERNELS):
        packed = np.concatenate([kernels[name] for name in "qkv"], axis=1).reshape(-1, HEADS * EACH)
        bias = np.concatenate([BIASES[number][name] for name in "qkv"], axis=1).ravel()
        kernel, shape = ((-1, HEADS, EACH), (HEADS, EACH)) if general else ((-1, HEADS * EACH), (-1,))
        apart = {name: kernels[name].reshape(-1, HEADS * EACH).T.reshape(kernel).copy() for name in "qkv"}
        apart |= {f"{name}_bias": BIASES[number][name].reshape(shape) for name in "qkv"}
        weights[f"{'Block_' if ported else 'layer'}{number}"] = {
            "o": kernels["o"],
            **(apart if ported else {"qkv": packed, "bias": bias}),
        }
    if wrong == "kernel":
        weights["Block_1"]["k"] = weights["Block_0"]["k"].copy()
    return gs.capture(loss, weights, TOKENS, origins=False)


@pytest.mark.slow
@sampled("general", [False, True])
def test_projections_of_which_one_program_has_those_of_a_head_side_by_side_are_found(general: bool) -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_heads(ported=one, general=general), _heads(ported=other, general=general))
        assert found.verdict == "same", found.sentence
        names = {"layer1/qkv"} if other else {"Block_1/q", "Block_1/k", "Block_1/v"}
        assert names <= {row.name for row in found.rows if row.family == "activation" and row.status == "same"}


@pytest.mark.slow
@sampled(("wrong", "general"), [("scale", False), ("kernel", False), ("scale", True)])
def test_a_wrong_one_of_such_projections_is_named(wrong: str, general: bool) -> None:
    found = gs.compare(_heads(ported=False), _heads(ported=True, wrong=wrong, general=general))
    assert found.first_divergence.forward is not None, found.sentence
    assert found.first_divergence.forward.name == "layer1/qkv"


def test_blocks_are_found_in_any_order_but_where_they_look_alike() -> None:
    parts = {"a": _draw(8, 3), "b": _draw(4, 3), "other": _draw(12, 3)}
    blocks = np.split(np.concatenate([parts["a"], parts["b"]]), 3)
    packed = np.concatenate([blocks[2], blocks[1], blocks[0]])
    assert shuffled_blocks(packed, parts) == (("b", "a"), (0, 2, 1))
    assert shuffled_blocks(packed + 1, parts) is None
    parts["a"][4:] = parts["a"][:4]
    assert shuffled_blocks(np.concatenate([blocks[2], blocks[0], blocks[0]]), parts) is None


@pytest.mark.parametrize("size", [1, 2])
def test_single_rows_say_nothing(size: int) -> None:
    part, other = _draw(4 * size), _draw(2 * size)
    packed = np.concatenate([*(part.reshape(4, size)[::-1]), other])
    assert (shuffled_blocks(packed, {"part": part, "other": other}) is None) is (size == 1)


@cache
def _attention_of_images(*, packed: bool) -> Dump:
    """An attention over the positions of an image, whose convolutions have query, key and value of each head in one."""
    kernels = {name: each[None, None] for name, each in zip("qkv", PROJECTIONS, strict=True)}
    side_by_side = np.stack([each.reshape(1, 1, IN, HEADS, EACH) for each in kernels.values()], axis=-2)
    weights = {"qkv": side_by_side.reshape(1, 1, IN, -1)} if packed else kernels

    def convolved(name: str, own: Any, x: Any) -> Any:
        with jax.named_scope(name):
            return jax.lax.conv_general_dilated(
                x, own[name], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

    def loss(weights: Any, batch: Any) -> Any:
        if packed:
            each = convolved("qkv", weights, batch).reshape(2, 6, HEADS, 3, EACH)
            q, k, v = (each[..., number, :] for number in range(3))
        else:
            q, k, v = (convolved(name, weights, batch).reshape(2, 6, HEADS, EACH) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k))
        with jax.named_scope("attended"):
            x = jnp.einsum("nhqk,nkhd->nqhd", scores, v)
        return jnp.square(x).mean()

    return gs.capture(loss, weights, IMAGE, origins=False)


IMAGE = _draw(2, 2, 3, IN)
PROJECTIONS = [_draw(IN, HEADS * EACH) for _ in "qkv"]


@pytest.mark.slow
def test_heads_that_are_side_by_side_in_a_convolution_of_single_positions_are_found() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_attention_of_images(packed=one), _attention_of_images(packed=other))
        assert found.verdict == "same", found.sentence


PACKED: Final = {"w": _draw(HEADS * EACH, 3, HEADS, EACH), "b": _draw(3, HEADS, EACH), "o": _draw(HEADS * EACH, 3)}


@cache
def _packed(*, by_head: bool, scale: float = EACH**-0.5) -> Dump:
    """An attention whose queries, keys and values are one layer's: all of each together, or those of each head.

    Args:
        by_head: Whether those of each head are side by side.
        scale: The factor of the scores.
    """
    name = "to_qkv" if by_head else "qkv"
    kernel, bias = (jnp.swapaxes(PACKED[kind], -3, -2) if by_head else PACKED[kind] for kind in "wb")
    own = {"w": jnp.reshape(kernel, (HEADS * EACH, -1)), "b": jnp.ravel(bias)}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            packed = batch @ weights[name]["w"] + weights[name]["b"][None, None]
        heads = (HEADS, 3) if by_head else (3, HEADS)
        q, k, v = jnp.moveaxis(packed.reshape(*batch.shape[:2], *heads, EACH), 3 if by_head else 2, 0)
        shares = jax.nn.softmax(scale * jnp.einsum("nqhd,nkhd->nhqk", q, k))
        read = jnp.einsum("nhqk,nkhd->nqhd", shares, v).reshape(batch.shape)
        with jax.named_scope("out"):
            return jnp.square(read @ weights["o"]).mean()

    return gs.capture(loss, {name: own, "o": PACKED["o"]}, TOKENS, origins=False)


@pytest.mark.slow
def test_a_packed_layer_may_have_its_heads_in_another_order_in_both_programs() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_packed(by_head=one), _packed(by_head=other))
        assert found.verdict == "same", found.sentence
        assert all(row.compared for row in found.rows)
    wrong = gs.compare(_packed(by_head=False), _packed(by_head=True, scale=1.0))
    assert wrong.sentence.startswith("Forward first differs at `out`"), wrong.sentence


@cache
def _rotary(*, interleaved: bool, kernels: bool, factor: float = 1.0) -> Dump:
    """An attention with rotary positions, whose pairs of features are side by side, or in the two halves of a head.

    Args:
        interleaved: Whether it rotates features that are side by side.
        kernels: Whether its kernels are those for that.
        factor: What it multiplies its inputs by.
    """
    angles = np.arange(TOKENS.shape[1], dtype=np.float32)[:, None] * np.array(
        [1.0, 0.1], np.float32
    )  # [position, pair]

    def in_order(own: Array) -> Array:
        pairs = own.reshape(HEADS, 2, EACH // 2, -1)
        return (pairs.swapaxes(1, 2) if kernels else pairs).reshape(HEADS * EACH, -1)

    def rotated(x: Any) -> Any:
        x = x.reshape(*x.shape[:2], HEADS, *((EACH // 2, 2) if interleaved else (2, EACH // 2)))
        one, other = jnp.moveaxis(x, -1 if interleaved else -2, 0)  # [batch, position, head, pair]
        cosine, sine = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        return jnp.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)

    def loss(weights: Any, x: Any) -> Any:
        parts: dict[str, Any] = {}
        with jax.named_scope("scaled"):
            x *= factor
        for name in "qkv":
            with jax.named_scope(f"{name}_proj"):
                parts[name] = x @ weights[name]
        value = parts["v"].reshape(*x.shape[:2], HEADS, EACH)
        shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", rotated(parts["q"]), rotated(parts["k"])))
        with jax.named_scope("o_proj"):
            return jnp.square(jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(x.shape) @ weights["o"]).mean()

    own = {name: kernel.reshape(-1, HEADS * EACH) for name, kernel in KERNELS[0].items()}
    own |= {name: in_order(own[name]) for name in "qk"}
    return gs.capture(loss, {name: kernel.T.copy() for name, kernel in own.items()}, TOKENS, origins=False)


@pytest.mark.slow
def test_pairs_of_features_that_rotary_positions_rotate_may_be_side_by_side_or_in_halves() -> None:
    halves = _rotary(interleaved=False, kernels=False)
    for one, other in (
        (halves, _rotary(interleaved=True, kernels=True)),
        (_rotary(interleaved=True, kernels=True), halves),
    ):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
        assert all(row.compared for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [False, True])
def test_rotary_positions_of_another_kind_than_the_kernels_are_a_fault(kernels: bool) -> None:
    found = gs.compare(_rotary(interleaved=False, kernels=False), _rotary(interleaved=not kernels, kernels=kernels))
    assert found.sentence.startswith("Forward first differs at `o_proj`"), found.sentence


@pytest.mark.slow
def test_what_layers_return_behind_a_fault_has_the_order_of_their_kernels() -> None:
    found = gs.compare(_rotary(interleaved=False, kernels=False), _rotary(interleaved=True, kernels=True, factor=1.01))
    assert found.sentence.startswith("Forward first differs at `scaled`"), found.sentence
    assert "made anew" not in found.sentence
    errors = {(row.family, row.name): row.metrics["rel_l2"] for row in found.rows if row.name in ("q_proj", "k_proj")}
    assert len(errors) == 4
    assert all(isinstance(each, float) and each < 0.1 for each in errors.values()), errors
