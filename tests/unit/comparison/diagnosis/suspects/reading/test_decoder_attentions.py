"""What the attentions of two decoders do differently is told: rotary positions, heads of keys, and causal masks."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.naming.wording import brief
from tests.support.data import drawn
from tests.support.sampled import sampled

EXAMPLES, LENGTH, WIDTH, HEADS, OF_KEYS = 2, 7, 8, 4, 2
SIZES = {"q": HEADS * WIDTH, "k": OF_KEYS * WIDTH, "v": OF_KEYS * WIDTH, "o": HEADS * WIDTH}
KERNELS = {name: drawn(number, HEADS * WIDTH, size) / 5 for number, (name, size) in enumerate(SIZES.items())}
KEPT = (np.arange(LENGTH) < np.array([[5], [7]])).astype(np.int32)


def _rotated(x: Any, fault: str) -> Any:
    """Rotates features `[examples, positions, heads, features]` as complex numbers, unlike the package."""
    if fault == "half":
        return jnp.concatenate([_rotated(x[..., : WIDTH // 2], ""), x[..., WIDTH // 2 :]], -1)
    base, width = {"base": 5e5, "short base": 1e3}.get(fault, 1e4), x.shape[-1]
    positions = np.arange(LENGTH) * (0.5 if fault == "stride" else 1) + (fault == "ahead")
    angles = positions[:, None] * base ** (-np.arange(width // 2) / (width // 2))
    turns = np.exp(1j * (-angles if fault == "backwards" else angles))[None, :, None].astype(np.complex64)
    if fault == "neighbours":
        turned = jax.lax.complex(x[..., ::2], x[..., 1::2]) * turns
        return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)
    turned = jax.lax.complex(x[..., : width // 2], x[..., width // 2 :]) * turns
    return jnp.concatenate([turned.real, turned.imag], -1)


@cache
def _decoder(fault: str = "", *, padded: bool = False, scale: float = WIDTH**-0.5) -> gs.Dump:
    def loss(kernels: dict[str, Any], batch: dict[str, Any]) -> Any:
        parts = []
        for name in "qkv":
            with jax.named_scope(name):
                parts.append((batch["x"] @ kernels[name]).reshape(EXAMPLES, LENGTH, -1, WIDTH))
        query, key, value = parts
        if fault != "none":
            query, key = (
                _rotated(query, fault),
                key if fault == "query" else _rotated(key, "" if fault == "ahead" else fault),
            )
        value = _rotated(value, fault) if fault == "all" else value
        repeat = (lambda x: jnp.tile(x, (1, 1, 2, 1))) if fault == "tiled" else (lambda x: jnp.repeat(x, 2, axis=2))
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, repeat(key)) * scale
        mask = np.tril(np.ones((LENGTH, LENGTH), np.bool_), {"before": -1, "next": 1}.get(fault, 0))
        mask = mask & ~np.tril(mask, -4) if fault == "window" else mask.T if fault == "after" else mask
        shown = mask & (batch["kept"][:, None, None] == 1) if padded else mask
        shares = jax.nn.softmax(jnp.where(shown, scores, -1e9))
        x = jnp.einsum("nhqk,nkhd->nqhd", shares, repeat(value)).reshape(batch["x"].shape)
        with jax.named_scope("o"):
            x = x @ kernels["o"]
        return jnp.square(x).mean()

    with jax.numpy_rank_promotion("allow"):
        batch = {"x": drawn(9, EXAMPLES, LENGTH, HEADS * WIDTH), "kept": KEPT}
        return gs.capture(loss, KERNELS, batch, origins=False)


ROTARY = "rotary positions of halves and base 1.0e4"


@sampled(
    ("fault", "own", "other"),
    [
        ("none", ROTARY, "no rotary positions"),
        ("base", ROTARY, "rotary positions of halves and base 5.0e5"),
        ("neighbours", ROTARY, "rotary positions of neighbours and base 1.0e4"),
        ("short base", ROTARY, "rotary positions of halves and base 1.0e3"),
        ("half", ROTARY, f"{ROTARY}, of half of the features"),
        ("stride", ROTARY, f"{ROTARY}, positions times 0.50"),
        ("ahead", ROTARY, f"{ROTARY}, queries 1 ahead"),
        ("backwards", ROTARY, f"{ROTARY}, turned backwards"),
        ("query", ROTARY, f"{ROTARY}, of queries alone"),
        ("all", ROTARY, f"{ROTARY}, of values, too"),
        ("tiled", "each head of keys repeated", "the heads of keys repeated in turn"),
        ("before", "a causal mask", "a causal mask without each position itself"),
        ("next", "a causal mask", "a causal mask that shows the next position, too"),
        ("after", "a causal mask", "a mask of later positions alone"),
        ("window", "a causal mask", "a causal mask of a window of 4"),
    ],
)
def test_what_the_attentions_of_two_decoders_do_differently_is_told(fault: str, own: str, other: str) -> None:
    sentence = gs.compare(_decoder(), _decoder(fault)).sentence
    assert f", which reads an attention with {own}, and in the candidate with {other}." in sentence


@pytest.mark.parametrize(
    ("fault", "other"),
    [("next", "a causal mask that shows the next position, too"), ("after", "a mask of later positions alone")],
)
def test_a_causal_mask_may_be_mistaken_beside_one_that_is_given(fault: str, other: str) -> None:
    sentence = gs.compare(_decoder(padded=True), _decoder(fault, padded=True)).sentence
    assert f", which reads an attention with a causal mask, and in the candidate with {other}." in sentence


def test_a_mask_that_only_one_program_reads_through_is_told_beside_the_causal_one() -> None:
    sentence = gs.compare(_decoder(padded=True), _decoder()).sentence
    assert "with `kept` as the mask, and a causal mask, and in the candidate with a causal mask." in sentence


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [True, False])
def test_another_scale_is_told_of_attentions_within_a_window(scaled: bool) -> None:
    right, wrong = _decoder("window"), _decoder("window", scale=1.0)
    sentence = gs.compare(*((right, wrong) if scaled else (wrong, right))).sentence
    own, other = (f"scores times {brief(each)}" for each in ((WIDTH**-0.5, 1.0) if scaled else (1.0, WIDTH**-0.5)))
    assert f" an attention with {own}, and in the candidate with {other}." in sentence
