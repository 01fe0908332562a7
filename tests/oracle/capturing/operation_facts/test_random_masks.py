"""The share that a random mask drops is what NumPy counts in the mask, however it is applied; nothing else is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.presentation.tables.facts import facts
from tests.support.data import drawn
from tests.support.sampled import sampled

X = drawn(0, 16, 8)
PARAMS = {"inner": drawn(1, 8, 64), "outer": drawn(2, 64, 1), "token": drawn(3, 64)}
KEY = jax.random.key(1)
RATE = 0.97


def kept(rate: float = RATE) -> Any:
    return jax.random.bernoulli(KEY, 1 - rate, (16, 64))


def loss_of(masked: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("inner"):
            h = jax.nn.relu(x @ p["inner"])
        with jax.named_scope("drop"):
            h = masked(h, p["token"])
        return jnp.square(h @ p["outer"]).mean()

    return loss


@sampled(
    "masked",
    [lambda h, _: jnp.where(kept(), h / (1 - RATE), 0), lambda h, _: jnp.where(~kept(), 0.0, h),
     lambda h, _: h * kept().astype("float32") / (1 - RATE), lambda h, _: (kept().astype("float32") / (1 - RATE)) * h,
     lambda h, _: jax.lax.select(kept(), h, jnp.zeros_like(h)).reshape(16, 8, 8).reshape(16, 64),
     jax.checkpoint(lambda h, _: jnp.where(kept(), h, 0.0))],
)  # fmt: skip
def test_a_mask_that_drops_nearly_all_is_told_with_its_share_and_no_dead_unit(
    masked: Callable[[Any, Any], Any],
) -> None:
    dump = gs.capture(loss_of(masked), PARAMS, X)
    (mask,) = dump.manifest.random_masks
    assert (mask.share, mask.elements) == (pytest.approx(1 - float(np.mean(np.asarray(kept()))), abs=1e-6), 16 * 64)
    assert [each.rule for each in dump.findings() if each.name != "token"] == []
    (text,) = [text for label, text in facts("dump.npz", dump.manifest) if label == "dropped"]
    assert text.startswith("the random mask at test_random_masks.py:")
    assert f" makes {mask.share:.1%} of the elements zero" in text


@pytest.mark.slow
@sampled(
    "other",
    [lambda h, _: jnp.where(kept(0.5), h / 0.5, 0), lambda h, _: jnp.where(kept(0.1), h / 0.9, 0),
     lambda h, token: jnp.where(kept(), token[None], h),
     lambda h, token: h * (~kept()).astype("float32") + token[None] * kept().astype("float32"),
     lambda h, _: h + h * (jax.random.randint(KEY, (16, 1), 0, 50) == jnp.arange(64)[None]).astype("float32"),
     lambda h, _: h * (h > 2.0).astype("float32"), lambda h, _: 2.0 * (h * jax.random.normal(KEY, h.shape)),
     lambda h, _: h + jnp.where(kept(), jax.random.normal(KEY, h.shape), 0)],
)  # fmt: skip
def test_a_usual_rate_a_learned_token_a_choice_and_a_threshold_are_not_told(other: Callable[[Any, Any], Any]) -> None:
    dump = gs.capture(loss_of(other), PARAMS, X)
    assert [text for label, text in facts("dump.npz", dump.manifest) if label == "dropped"] == []


@pytest.mark.slow
def test_a_mask_of_the_terms_of_a_loss_is_none() -> None:
    dump = gs.capture(lambda w, x: (jnp.square(jnp.tanh(x @ w)) * kept().astype(x.dtype)).mean(), PARAMS["inner"], X)
    assert dump.manifest.random_masks == ()


@pytest.mark.slow
def test_few_elements_are_dropped_by_chance() -> None:
    def loss(p: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(KEY, 0.01, (16, 1))
        return jnp.square(jnp.where(keep, jax.nn.relu(x @ p["inner"]), 0) @ p["outer"]).mean()

    dump = gs.capture(loss, PARAMS, X)
    assert [each.is_beyond_rates for each in dump.manifest.random_masks] == [False]


@pytest.mark.slow
def test_a_rectifier_that_is_dead_beside_a_usual_dropout_is_told() -> None:
    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("fc"):
            h = jax.nn.relu(x @ p["inner"] - 100.0)
        with jax.named_scope("drop"):
            h = jnp.where(kept(0.5), h / 0.5, 0)
        return jnp.square(h @ p["outer"] + 1).mean()

    assert [each.rule for each in gs.capture(loss, PARAMS, X).findings()][:1] == ["dead"]
