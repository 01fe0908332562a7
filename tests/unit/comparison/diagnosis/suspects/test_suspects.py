"""A step that only one program has is named first where it is at fault, and the next layer where that is."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison
from gradscope.presentation.reports.comparing.comparison_overview import overview_tables
from tests.support.sampled import sampled

_draw = np.random.default_rng(41).normal
WEIGHTS = {
    "conv1": {"kernel": _draw(size=(3, 3, 2, 4)).astype(np.float32), "bias": _draw(size=4).astype(np.float32)},
    "conv2": {"kernel": (_draw(size=(3, 3, 4, 4)) / 3).astype(np.float32), "bias": _draw(size=4).astype(np.float32)},
    "norm": {"scale": (1 + _draw(size=4) / 4).astype(np.float32), "bias": _draw(size=4).astype(np.float32)},
    "fc": {"kernel": (_draw(size=(16, 6)) / 3).astype(np.float32), "bias": _draw(size=6).astype(np.float32)},
    "head": {"kernel": _draw(size=(6, 3)).astype(np.float32)},
}
#: The parameters of a port.
PORTED = {"conv1": "Conv_0", "conv2": "Conv_1", "norm": "GroupNorm_0", "fc": "Dense_0", "head": "Dense_1"}
IMAGE = _draw(size=(3, 4, 4, 2)).astype(np.float32)


def _conv(own: Any, x: Any, *, padding: Any = "SAME", dilation: int = 1, bias: bool = True) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(
        x, own["kernel"], (1, 1), padding, rhs_dilation=(dilation,) * 2, dimension_numbers=layout
    )
    return y + own["bias"][None, None, None] if bias else y


def _norm(own: Any, x: Any, epsilon: float = 1e-6) -> Any:
    mean, variance = x.mean((1, 2, 3), keepdims=True), x.var((1, 2, 3), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon) * own["scale"] + own["bias"]


def _pool(x: Any, *, mean: bool = False) -> Any:
    start, function = (0.0, jax.lax.add) if mean else (-jnp.inf, jax.lax.max)
    windows = jax.lax.reduce_window(x, start, function, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return windows / 4 if mean else windows


@cache
def _reference() -> Dump:
    """Every step has a scope."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("conv1"):
            x = _conv(weights["conv1"], batch["x"])
        with jax.named_scope("act"):
            x = jax.nn.gelu(x)
        with jax.named_scope("conv2"):
            x = _conv(weights["conv2"], x)
        with jax.named_scope("shift"):
            x = x * jnp.arange(1.0, 5.0)
        with jax.named_scope("norm"):
            x = _norm(weights["norm"], x)
        with jax.named_scope("pool"):
            x = _pool(x)
        with jax.named_scope("flatten"):
            x = x.reshape(3, -1)
        with jax.named_scope("fc"):
            x = jax.nn.gelu(x @ weights["fc"]["kernel"] + weights["fc"]["bias"])
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]["kernel"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, WEIGHTS, {"x": IMAGE}, origins=False)


@cache
def _compared(fault: str) -> Comparison:
    """The comparison with a port in which only layers with parameters have scopes."""
    own = {new: dict(WEIGHTS[old]) for old, new in PORTED.items()}
    if fault == "flipped":
        own["Conv_1"]["kernel"] = np.ascontiguousarray(own["Conv_1"]["kernel"][::-1])

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Conv_0"):
            x = _conv(weights["Conv_0"], batch["x"])
        x = jax.nn.relu(x) if fault == "relu" else jax.nn.gelu(x)
        x = x * jnp.tile(jnp.array([0.0, 1.25]), 2) if fault == "dropout" else x
        with jax.named_scope("Conv_1"):
            padding = [(0, 2), (2, 0)] if fault == "padding" else [(2, 2)] * 2 if fault == "dilation" else "SAME"
            x = _conv(
                weights["Conv_1"], x, padding=padding, dilation=1 + (fault == "dilation"), bias=fault != "no bias"
            )
        x = x * (jnp.arange(1.0, 5.0)[::-1] if fault == "shift" else jnp.arange(1.0, 5.0))
        with jax.named_scope("GroupNorm_0"):
            x = _norm(weights["GroupNorm_0"], x, 5.0 if fault == "epsilon" else 1e-6)
        x = _pool(x, mean=fault == "pooling")
        x = (x.swapaxes(1, 2) if fault == "flattening" else x).reshape(3, -1)
        with jax.named_scope("Dense_0"):
            x = x @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"]
            x = jax.nn.silu(x) if fault == "silu" else jax.nn.gelu(x)
        with jax.named_scope("Dense_1"):
            return jnp.square(x @ weights["Dense_1"]["kernel"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.compare(_reference(), gs.capture(loss, own, {"x": IMAGE}, origins=False))


@pytest.mark.slow
def test_a_port_is_the_same_without_the_steps() -> None:
    assert _compared("").verdict == "same"


@pytest.mark.slow
@sampled(
    ("fault", "layer"),
    [
        *(("padding", "conv2"), ("dilation", "conv2"), ("flipped", "conv2"), ("no bias", "conv2")),
        *(("epsilon", "norm"), ("silu", "fc")),
    ],
)
def test_a_layer_behind_a_step_is_named_where_the_layer_is_at_fault(fault: str, layer: str) -> None:
    found = _compared(fault)
    assert not found.blame.suspects
    assert found.sentence.startswith(f"Forward first differs at `{layer}` (rel_l2"), found.sentence


@sampled(
    ("fault", "step", "words"),
    [
        ("relu", "act", "where `act` is the gelu by tanh of what it reads, and in the candidate the relu"),
        ("dropout", "act", ""),
        ("shift", "shift", ""),
        ("pooling", "pool", "where `pool` is the maximum of what it reads, and in the candidate the mean"),
        ("flattening", "flatten", "where `flatten` is the order of axes [0, 1, 2, 3] of what it reads, and in the"),
    ],
)
def test_a_step_is_named_where_it_is_at_fault(fault: str, step: str, words: str) -> None:
    found = _compared(fault)
    assert [row.name for row in found.blame.suspects] == [step], found.sentence
    assert found.blame.made_before
    assert found.sentence.startswith(f"Forward first differs at `{step}`, only in the reference, and next at `")
    assert words in found.sentence
    assert found.to_json()["suspects"] == [step]
    *_, table = overview_tables(found, 3)
    assert [line.cells[-1] for line in table.lines] == [("suspect",), ("forward",), ("backward",)]
    assert table.lines[0].cells[0] == f"activation/{step}"


@cache
def _gated(*, port: bool, fault: str = "") -> Dump:
    """Two projections that are multiplied; a port has both as one, and the mixture in no scope."""
    draw = np.random.default_rng(7).normal
    value, gate, out, head = (draw(size=size).astype(np.float32) for size in ((5, 6), (5, 6), (6, 6), (6, 2)))
    packed = np.concatenate([gate if fault == "another weight" else value, gate], 1)
    own = {"in": packed} if port else {"value": value, "gate": gate}
    own |= {"first": draw(size=(5, 5)).astype(np.float32), "out": out, "head": head}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.tanh(batch["x"] @ weights["first"])
        if port:
            with jax.named_scope("in"):
                both = x @ weights["in"]
            v, g = jnp.split(both, 2, -1)
            g = jax.lax.stop_gradient(g) if fault == "stopped" else g
            x = jnp.tanh(v) * jax.nn.sigmoid(g)
        else:
            with jax.named_scope("value"):
                v = jnp.tanh(x @ weights["value"])
            with jax.named_scope("gate"):
                g = jax.nn.sigmoid(x @ weights["gate"])
            x = v * g
        with jax.named_scope("out"):
            x = jnp.tanh(x @ weights["out"])
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return gs.capture(loss, own, {"x": draw(size=(7, 5)).astype(np.float32)}, origins=False)


@pytest.mark.slow
def test_a_step_whose_parameter_differs_is_named_and_one_that_is_borne_out_is_not() -> None:
    assert gs.compare(_gated(port=False), _gated(port=True)).verdict == "same"
    found = gs.compare(_gated(port=False), _gated(port=True, fault="another weight"))
    assert found.blame.suspects
    assert found.blame.suspects[0].name == "value", found.sentence


def test_the_cotangent_of_the_step_whose_parameters_have_other_gradients_differs_first() -> None:
    found = gs.compare(_gated(port=False), _gated(port=True, fault="stopped"))
    assert found.first_divergence.backward_only
    names = [row.name for row in found.blame.suspects] or [found.first_divergence.backward.name]  # type: ignore[union-attr]
    assert names[0] == "gate", found.sentence


@cache
def _odd(*, port: bool, poisoned: bool = False) -> Dump:
    """A layer whose output is a number, and one that a value without axes is read by."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            x = batch["x"] @ weights["kernel"]
        if not port:
            with jax.named_scope("total"):
                total = (x * weights["scale"]).sum()
        else:
            total = (x * weights["scale"] * (jnp.nan if poisoned else 2.0)).sum()
        with jax.named_scope("last"):
            return jnp.tanh(total * weights["temperature"])

    own = {"kernel": np.eye(3, dtype=np.float32) / 9, "scale": np.float32(0.5), "temperature": np.float32(0.3)}
    return gs.capture(loss, own, {"x": np.ones((2, 3), np.float32)}, origins=False)


@pytest.mark.parametrize("poisoned", [False, True])
def test_numbers_and_what_is_not_finite_are_no_obstacle(poisoned: bool) -> None:
    found = gs.compare(_odd(port=False), _odd(port=True, poisoned=poisoned))
    assert found.verdict == "different"
    assert "Forward" in found.sentence


@cache
def _masked(*, ported: bool, wrong: bool = False) -> Dump:
    """Attention that ends with a layer over the features of all heads; its mask is made of an input of integers."""

    def loss(weights: Any, batch: Any) -> Any:
        x, heads = batch["x"], weights["out"].reshape(2, 3, 6)
        with jax.named_scope("v" if ported else "value"):
            v = x @ weights["value"]
        v = v.reshape(*x.shape[:2], 2, 3)
        mask = jnp.where(jnp.arange(x.shape[1])[None] < batch["lengths"][:, None], 0.0, 0.0 if wrong else -1e9)
        scores = jnp.einsum("bqc,bkc->bqk", x, x) + mask[:, None]
        with nullcontext() if ported else jax.named_scope("weights"):
            shares = jax.nn.softmax(scores, axis=-1)
        with nullcontext() if ported else jax.named_scope("mix"):
            x = jnp.einsum("bqk,bkhd->bqhd", shares, v)
        with jax.named_scope("o" if ported else "out"):
            x = x.reshape(*x.shape[:2], 6) @ weights["out"] if ported else jnp.einsum("bqhd,hdw->bqw", x, heads)
        return jnp.square(x).mean()

    weights = {"value": WEIGHTS["fc"]["kernel"][:6], "out": WEIGHTS["fc"]["kernel"][6:12]}
    batch = {"x": IMAGE.reshape(3, -1)[:, :24].reshape(3, 4, 6), "lengths": np.array([4, 2, 3], np.int32)}
    return gs.capture(loss, weights, batch, origins=False)


@pytest.mark.slow
def test_an_input_without_a_gradient_bears_nothing_out() -> None:
    assert gs.compare(_masked(ported=False), _masked(ported=True)).verdict == "same"
    found = gs.compare(_masked(ported=False), _masked(ported=True, wrong=True))
    assert [each.name for each in found.blame.suspects] == ["weights", "mix"], found.sentence
    assert found.blame.made_before


@cache
def _cell(*, ported: bool, forget: float = 1.0, stepped: float = 1.0) -> Dump:
    """A function of a layer that a cell of several values reads, and that no port has a scope for."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Dense_0" if ported else "dense"):
            x = x @ weights["in"]
        with nullcontext() if ported else jax.named_scope("act"):
            x = stepped * jax.nn.elu(x)
        h = c = jnp.zeros((len(x), 3))
        for n in range(2):
            with jax.named_scope("LSTMCell_0" if ported else "cell"):
                z = jnp.concatenate([x, h], -1) @ weights["cell"]
                c = jax.nn.sigmoid(z[:, :3] + (forget if n else 1.0)) * c + jnp.tanh(z[:, 3:6])
                h = jax.nn.sigmoid(z[:, 6:]) * jnp.tanh(c)
        return jnp.square(h).mean()

    weights = {"in": WEIGHTS["fc"]["kernel"][:6], "cell": np.tile(WEIGHTS["fc"]["kernel"][:9], (1, 2))[:, :9]}
    return gs.capture(loss, weights, IMAGE.reshape(-1, 6), origins=False)


@pytest.mark.slow
def test_what_a_layer_of_several_values_reads_is_right_where_all_of_them_agree() -> None:
    found = gs.compare(_cell(ported=False), _cell(ported=True, forget=0.0))
    first = found.first_divergence.forward
    assert first is not None
    assert first.name.startswith("cell#2"), found.sentence
    assert found.sentence.startswith(f"Forward first differs at `{first.name}`"), found.sentence
    assert not found.blame.unpaired


@cache
def _skipping(*, ported: bool, stopped: bool = False) -> Dump:
    """A layer that a pool reads, for which no port has a scope, and another layer."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Dense_0" if ported else "dense"):
            x = x @ weights["in"]
        with nullcontext() if ported else jax.named_scope("pool"):
            y = x.reshape(len(x), 3, 2).max(-1)
        with jax.named_scope("Dense_1" if ported else "side"):
            x = (jax.lax.stop_gradient(x) if stopped else x) @ weights["side"]
        return jnp.square(x + y).mean()

    weights = {"in": WEIGHTS["fc"]["kernel"][:6], "side": WEIGHTS["head"]["kernel"]}
    return gs.capture(loss, weights, IMAGE.reshape(-1, 6), origins=False)


def test_no_function_is_suspected_of_what_another_layer_does_not_send_back() -> None:
    found = gs.compare(_skipping(ported=False), _skipping(ported=True, stopped=True))
    assert found.first_divergence.backward is not None
    assert found.first_divergence.backward.name == "dense"
    assert [each.name for each in found.blame.unpaired_gradients] == ["pool"]
    assert not found.blame.suspects, found.sentence
