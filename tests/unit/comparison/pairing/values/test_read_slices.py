"""A value is compared with the slice of it that the loss reads, where the other program computes that alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(3).normal
WEIGHTS = {
    "scale": 1 + _draw(size=6).astype(np.float32) / 4,
    "head": _draw(size=(6, 3)).astype(np.float32),
    "up": _draw(size=(6, 6)).astype(np.float32),
}
TOKENS = _draw(size=(4, 7, 6)).astype(np.float32)


def _dump(*, first: bool, token: slice | int = 0, eps: float = 1e-5, ops: bool = False, rest: float = 0.0) -> Dump:
    """Normalises tokens, and reads some of them: those are taken first, or after that."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("up"):
            x = x @ weights["up"]
        with jax.named_scope("norm"):
            h = x[:, token] if first else x
            h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + eps)
            h = h * jnp.broadcast_to(weights["scale"], h.shape)
        read = h if first else h[:, token]
        with jax.named_scope("head"):
            read = read @ weights["head"]
        return (read**3).mean() + (rest * h**2).sum()

    return gs.capture(loss, WEIGHTS, TOKENS, origins=False, ops=ops)


@pytest.mark.slow
@pytest.mark.parametrize("token", [0, 3, -1, slice(2, 5)])
@sampled("larger", ["reference", "candidate"])
def test_a_value_agrees_with_the_slice_of_it_that_is_read(token: slice | int, larger: str) -> None:
    dumps = [_dump(first=first, token=token) for first in (larger == "candidate", larger == "reference")]
    found = gs.compare(*dumps)
    assert found, found.sentence
    rows = {(row.family, row.name): row for row in found.rows}
    assert rows["activation", "norm"].metrics["rel_l2"] < 1e-6
    assert rows["activation_grad", "norm"].metrics["rel_l2"] < 1e-6


@pytest.mark.slow
def test_a_difference_in_the_slice_is_found_in_the_layer() -> None:
    found = gs.compare(_dump(first=False), _dump(first=True, eps=1e-1))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "norm"
    assert "rel_l2" in found.sentence


def test_another_slice_differs() -> None:
    found = gs.compare(_dump(first=False), _dump(first=True, token=1))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "norm"


def test_a_value_of_which_the_loss_reads_all_is_no_slice() -> None:
    found = gs.compare(_dump(first=False, rest=0.01), _dump(first=True))
    assert found.first_divergence.forward is not None
    assert "the shape is" in found.sentence


@cache
def _graph(padding: int, *, kept: bool = True) -> Dump:
    """A network of two graphs, of which a third one holds nodes and edges that are only there to reach a size."""
    draw = np.random.default_rng(4)
    nodes, edges, ends = draw.normal(size=(7, 6)), draw.normal(size=(9, 6)), draw.integers(0, 7, (2, 9))
    batch = {
        "nodes": np.concatenate([nodes, np.zeros((padding, 6))]).astype(np.float32),
        "edges": np.concatenate([edges, np.ones((2 * padding, 6))]).astype(np.float32),
    }
    graph = jnp.array([0, 0, 0, 1, 1, 1, 1] + [2 if kept else 1] * padding)
    sources, targets = (jnp.concatenate([jnp.array(each), jnp.full(2 * padding, 7)]) for each in ends)

    def loss(weights: Any, data: Any) -> Any:
        with jax.named_scope("up"):
            x = data["nodes"] @ weights["up"]
        with jax.named_scope("messages"):
            sent = jnp.tanh(x[sources] + data["edges"])
            x = x + jax.ops.segment_sum(sent, targets, 7 + padding)
        with jax.named_scope("head"):
            each = jax.ops.segment_sum(x @ weights["head"], graph, 3 if padding else 2)
        return (each[:2] ** 3).mean() + weights["scale"].sum()

    return gs.capture(loss, WEIGHTS, batch, origins=False)


@pytest.mark.slow
@sampled("padding", [(0, 1), (2, 0)])
def test_graphs_that_are_padded_to_a_size_agree_with_their_inputs(padding: tuple[int, int]) -> None:
    found = gs.compare(*map(_graph, padding))
    assert found.verdict == "same", found.sentence
    assert {row.name for row in found.rows if row.family == "input" and row.status == "same"} == {"nodes", "edges"}


@pytest.mark.slow
def test_nodes_for_padding_that_the_loss_reads_differ() -> None:
    assert gs.compare(_graph(0), _graph(2, kept=False)).verdict == "different"


def _causal(*, channels_last: bool, padding: tuple[int, int], cut: slice = slice(None), length: int = 7) -> Dump:
    """A convolution that sees no later values: it is padded before them, or at both ends with its last results cut."""
    draw = np.random.default_rng(5)
    kernel = draw.normal(size=(3, 6, 6)).astype(np.float32)
    values = draw.normal(size=(4, length, 6)).astype(np.float32)
    layout = ("NWC", "WIO", "NWC") if channels_last else ("NCW", "OIW", "NCW")
    axes = (0, 1, 2) if channels_last else (0, 2, 1)
    weights = {"kernel": kernel if channels_last else kernel.transpose(2, 1, 0), "head": WEIGHTS["head"]}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("conv" if channels_last else "filter"):
            x = jax.lax.conv_general_dilated(x, weights["kernel"], (1,), [padding], dimension_numbers=layout)
        x = jnp.tanh((x if channels_last else x.swapaxes(1, 2))[:, cut])
        with jax.named_scope("head"):
            return ((x @ weights["head"]) ** 3).mean()

    return gs.capture(loss, weights, values.transpose(axes), origins=False)


@pytest.mark.parametrize("length", [7, 6])
def test_a_convolution_whose_last_results_are_cut_off_is_a_causal_one(length: int) -> None:
    """Of six values of six channels, the shape does not say which axis is which."""
    cut = _causal(channels_last=False, padding=(2, 2), cut=slice(length), length=length)
    causal = _causal(channels_last=True, padding=(2, 0), length=length)
    for dumps in ((cut, causal), (causal, cut)):
        found = gs.compare(*dumps)
        assert found.verdict == "same", found.sentence
        rows = [row for row in found.rows if {row.name} & {"conv", "filter"} and row.family.startswith("activation")]
        assert [row.status for row in rows] == ["same", "same"]


@pytest.mark.slow
def test_one_whose_first_results_are_cut_off_is_another() -> None:
    cut = _causal(channels_last=False, padding=(2, 2), cut=slice(2, None))
    found = gs.compare(cut, _causal(channels_last=True, padding=(2, 0)))
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name in {"conv", "filter"}
    assert "rel_l2" in found.sentence
