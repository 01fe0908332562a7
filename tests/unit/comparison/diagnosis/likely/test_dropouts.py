"""A value that differs by a dropout is said to, and one that differs by anything else is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.dropouts import dropout_between, share_of_other_mask

DRAW = np.random.default_rng(11)
VALUE = DRAW.normal(size=(6, 5, 8))
ELEMENTS = DRAW.random(VALUE.shape) < 0.75
EXAMPLES = np.array([True, False, True, True, True, False])[:, None, None]
BATCH = DRAW.normal(size=(6, 8)).astype(np.float32)
DRAW_OF_SCALE = np.random.default_rng(12).normal(size=8).astype(np.float32) / 4
WEIGHTS = {name: (DRAW.normal(size=(8, 8)) / 3).astype(np.float32) for name in ("first", "block", "head")}


@pytest.mark.parametrize(("kept", "factor"), [(ELEMENTS, 1 / 0.75), (EXAMPLES, 1.5)])
def test_elements_or_examples_that_are_dropped_at_random_are_a_dropout(kept: Any, factor: float) -> None:
    dropped = np.where(kept, factor * VALUE, 0.0)
    for of_ref, pair in ((False, (VALUE, dropped)), (True, (dropped, VALUE))):
        found = dropout_between(*pair)
        assert found is not None
        assert found.of_ref is of_ref
        assert found.factor == pytest.approx(factor)
        assert found.share == pytest.approx(1 - np.mean(np.broadcast_to(kept, VALUE.shape)))


@pytest.mark.parametrize(
    "other",
    [
        *(2.0 * VALUE, 0.0 * VALUE, np.maximum(2.0 * VALUE, 0.0), DRAW.normal(size=VALUE.shape)),
        # A mask alone has no factor, and the factor of a dropout says how many elements it leaves.
        *(np.where(ELEMENTS, VALUE, 0.0), np.where(ELEMENTS, 4.0 * VALUE, 0.0)),
    ],
    ids=["factor", "zeros", "rectifier", "unrelated", "mask", "another factor"],
)
def test_anything_else_is_none(other: Any) -> None:
    assert dropout_between(VALUE, other) is None
    assert dropout_between(other, VALUE) is None


def test_two_masks_of_one_value_are_drawn_and_those_of_its_values_are_not() -> None:
    other = np.random.default_rng(5).random(VALUE.shape) < 0.75
    one, drawn = (np.where(mask, VALUE / 0.75, 0.0) for mask in (ELEMENTS, other))
    assert share_of_other_mask(one, drawn) == pytest.approx(0.25, abs=0.05)
    rectified = np.maximum(VALUE, 0.0)
    # Behind a rectifier, more is zero than a mask drops, as it is of tokens that are sent to other experts.
    assert share_of_other_mask(np.where(ELEMENTS, rectified, 0.0), np.where(other, rectified, 0.0)) is None
    experts = DRAW.integers(0, 4, 60), DRAW.integers(0, 4, 60)
    sent = np.where(DRAW.random(60) < 0.3, experts[1], experts[0])
    assert share_of_other_mask(np.eye(4)[experts[0]], np.eye(4)[sent]) is None
    # Nested masks, other values and another factor are something else.
    for each in (one, np.where(ELEMENTS & other, VALUE / 0.75, 0.0), np.where(other, VALUE, 0.0), rectified, -drawn):
        assert share_of_other_mask(one, each) is None
        assert share_of_other_mask(each, one) is None


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
def test_the_sentence_tells_that_both_programs_draw_a_mask(residual: bool) -> None:
    def dropped(key: int) -> Callable[[Any], Any]:
        return lambda y: jnp.where(jax.random.bernoulli(jax.random.key(key), 0.75, y.shape), y / 0.75, 0.0)

    one, other = _program(dropped(1), residual=residual), _program(dropped(2), residual=residual)
    what = " in what is added to `first`" if residual else ""
    words = f"it is zero in other elements than the reference's{what}, as both draw at random which"
    assert words in gs.compare(one, other).sentence


@cache
def _program(dropped: Callable[[Any], Any], *, residual: bool) -> Dump:
    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = x @ weights["first"]
        with jax.named_scope("block"):
            y = dropped(jnp.tanh(x @ weights["block"]))
            x = x + y if residual else y
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@pytest.mark.parametrize("residual", [False, True])
def test_the_sentence_tells_a_dropout_that_is_left_on(residual: bool) -> None:
    def dropout(x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(jax.random.key(2), 0.5, x.shape), x / 0.5, 0.0)

    off, on = (_program(each, residual=residual) for each in (lambda x: x, dropout))
    added = " of what is added to `first`" if residual else ""
    for one, other, words in ((off, on, "with"), (on, off, "without")):
        sentence = gs.compare(one, other).sentence
        assert sentence.startswith("Forward first differs at `block` (rel_l2 "), sentence
        assert f"; it is the reference's {words} a dropout{added}, which sets " in sentence


@cache
def _embedded(*, of_port: bool) -> Dump:
    """A norm behind embeddings; the port has one scope around all of it, and a dropout that is left on."""

    def loss(weights: Any, batch: Any) -> Any:
        def embedded() -> Any:
            x = jnp.tanh(batch["x"] @ weights["first"])
            with nullcontext() if of_port else jax.named_scope("word"):
                x = jnp.sin(x)
            with nullcontext() if of_port else jax.named_scope("norm"):
                x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True)) * weights["scale"][None]
            return jnp.where(jax.random.bernoulli(jax.random.key(1), 0.75, x.shape), x / 0.75, 0.0) if of_port else x

        with jax.named_scope("embed") if of_port else nullcontext():
            x = embedded()
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    weights = WEIGHTS | {"scale": 1 + DRAW_OF_SCALE}
    return gs.capture(loss, weights, {"x": BATCH}, origins=False)


def test_a_dropout_is_told_behind_values_that_one_program_alone_has() -> None:
    found = gs.compare(_embedded(of_port=False), _embedded(of_port=True))
    assert "it is the reference's with a dropout, which sets" in found.sentence, found.sentence
