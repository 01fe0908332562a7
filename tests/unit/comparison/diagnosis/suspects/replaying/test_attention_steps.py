"""Of an attention that a port has no scopes in, the step is named in whose place the port has another."""

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
from tests.support.sampled import sampled

BATCH, TOKENS, HEADS, WIDTH = 3, 5, 2, 4
FEATURES = HEADS * WIDTH
KERNELS = ("first", "query", "key", "value", "out", "head")

#: The names of the port, which has one kernel for queries, keys and values.
PORTED = {"first": "Dense_0", "out": "Dense_1", "head": "Dense_2", "norm": "LayerNorm_0"}


def _draw(seed: int, *size: int) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


WEIGHTS = {name: _draw(seed, FEATURES, FEATURES) / 3 for seed, name in enumerate(KERNELS)}
WEIGHTS |= {"scale": 1 + _draw(8, FEATURES) / 4, "bias": _draw(9, FEATURES) / 3}
PACKED = {PORTED.get(name, name): value for name, value in WEIGHTS.items() if name not in KERNELS[1:4]}
PACKED["projection"] = np.concatenate([WEIGHTS[name] for name in KERNELS[1:4]], 1)
INPUTS = {"x": _draw(7, BATCH, TOKENS, FEATURES), "kept": np.arange(TOKENS) < np.array([[5], [3], [4]])}


def _attention(weights: Any, batch: Any, *, scopes: bool, apart: bool = True, fault: str = "") -> Any:
    """A block of attention behind a dense layer; the port has scopes around the layers in front and behind only."""

    def scope(name: str) -> Any:
        if not scopes:
            return jax.named_scope(PORTED[name]) if name in ("first", "norm", "head") else nullcontext()
        return jax.named_scope(name)

    if not scopes:
        kernels = dict(zip(KERNELS[1:4], jnp.split(weights["projection"], 3, 1), strict=True))
        weights = weights | kernels | {name: weights[own] for name, own in PORTED.items() if own in weights}

    def heads(name: str) -> Any:
        with scope(name):
            return (x @ weights[name]).reshape(BATCH, TOKENS, HEADS, WIDTH)

    with scope("first"):
        x = jnp.tanh(batch["x"] @ weights["first"])
    query, key, value = map(heads, ("query", "key", "value"))
    value = key if fault == "keys for values" else value

    def scored() -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        return scores / {"no scale": 1.0, "scale of width": FEATURES**0.5}.get(fault, WIDTH**0.5)

    def shared(scores: Any) -> Any:
        kept = batch["kept"][:, None, None]
        kept = jnp.ones_like(kept) if fault == "no mask" else kept
        kept = kept & np.tri(TOKENS, dtype=bool) if fault == "causal" else kept
        return jax.nn.softmax(jnp.where(kept, scores, -1e9), axis=-2 if fault == "axis" else -1)

    if apart:
        with scope("scores"):
            scores = scored()
        with scope("shares"):
            shares = shared(scores)
    else:
        with scope("shares"):
            shares = shared(scored())
    with scope("context"):
        context = jnp.einsum("bhqk,bkhd->bqhd", shares, value)
        context = context.swapaxes(2, 3) if fault == "joined" else context
        context = context.reshape(BATCH, TOKENS, FEATURES)
    with scope("out"):
        out = context @ weights["out"]
    with scope("sum"):
        x = out if fault == "no residual" else x + out
    with scope("norm"):
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * weights["scale"] + weights["bias"]
    if fault == "after":
        x = x * jnp.arange(1.0, 1 + FEATURES)
    with scope("head"):
        return jnp.square(x @ weights["head"]).mean()


@cache
def _captured(**how: Any) -> Dump:
    with jax.numpy_rank_promotion("allow"):
        weights = WEIGHTS if how["scopes"] else PACKED
        return gs.capture(lambda *each: _attention(*each, **how), weights, INPUTS, origins=False)


@cache
def _reference() -> Dump:
    return _captured(scopes=True)


@cache
def _compared(fault: str) -> Comparison:
    return gs.compare(_reference(), _captured(scopes=False, fault=fault))


@pytest.mark.slow
def test_a_port_without_scopes_is_the_same_either_way_round() -> None:
    assert _compared("").verdict == "same"
    assert gs.compare(_captured(scopes=False), _reference()).verdict == "same"


@pytest.mark.slow
@sampled(
    ("fault", "step", "own", "other"),
    [
        ("no mask", "shares", "masked softmax over axis 3", "softmax without a mask"),
        ("causal", "shares", "masked softmax over axis 3", "softmax with a causal mask"),
        ("axis", "shares", "masked softmax over axis 3", "softmax over axis 2"),
        ("no scale", "scores", "product / 2", "product"),
        ("scale of width", "scores", "product / 2", "product / sqrt(8)"),
        ("keys for values", "context", "product", "product with `key` in place of `value`"),
        ("joined", "out", "product", "product of the same features in another order"),
        ("no residual", "sum", "sum", "sum without a term"),
    ],
)
def test_the_step_is_named_with_which_replaced_all_that_follows_is_reproduced(
    fault: str, step: str, own: str, other: str
) -> None:
    found = _compared(fault)
    assert [row.name for row in found.blame.suspects] == [step], found.sentence
    assert found.blame.made_before
    assert f"where `{step}` is the {own} of what it reads, and in the candidate the {other}." in found.sentence


@sampled(
    ("fault", "own", "other"),
    [
        ("no mask", "masked softmax over axis 3 of the product / 2", "softmax without a mask of the product / 2"),
        ("no scale", "masked softmax over axis 3 of the product / 2", "masked softmax over axis 3 of the product"),
    ],
)
def test_one_step_for_scores_and_shares_is_named_with_what_the_port_has_in_place_of_either(
    fault: str, own: str, other: str
) -> None:
    reference = _captured(scopes=True, apart=False)
    assert gs.compare(reference, _captured(scopes=False)).verdict == "same"
    found = gs.compare(reference, _captured(scopes=False, fault=fault))
    assert [row.name for row in found.blame.suspects] == ["shares"], found.sentence
    assert f"where `shares` is the {own} of what it reads, and in the candidate the {other}." in found.sentence


@pytest.mark.slow
def test_no_step_is_named_where_what_follows_is_reproduced_by_none() -> None:
    found = _compared("after")
    assert not found.blame.suspects
    assert found.sentence.startswith("Forward first differs at `head`"), found.sentence


@pytest.mark.slow
def test_a_step_of_the_candidate_is_named_where_only_that_has_scopes() -> None:
    found = gs.compare(_captured(scopes=False), _captured(scopes=True, fault="scale of width"))
    assert [row.name for row in found.blame.suspects] == ["scores"], found.sentence
    assert found.blame.suspects[0].likely == (
        "the product / sqrt(8) of what it reads, and in the reference the product / 2"
    )
