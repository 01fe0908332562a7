"""The transformer: one computation, whether scanned or unrolled, checkpointed or not; and no looking ahead."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.transformer import Transformer, causal_softmax

SMALL = Transformer(layers=2, width=16, heads=2, vocabulary=11, length=6)
SMALL_INIT, SMALL_BATCH, SMALL_FORWARD = jax.jit(SMALL.init), jax.jit(SMALL.batch), jax.jit(SMALL.forward)


@pytest.fixture
def example() -> tuple[Any, Any]:
    return SMALL_INIT(jax.random.key(0)), SMALL_BATCH(jax.random.key(1))


def test_unrolling_and_checkpointing_change_neither_loss_nor_gradients(x64: None, example: tuple[Any, Any]) -> None:
    scanned_and_checkpointed, neither = SMALL, replace(SMALL, unroll=True, checkpoint=False)
    expected, found = (jax.jit(jax.value_and_grad(each.loss))(*example) for each in (scanned_and_checkpointed, neither))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), found, expected)


def test_unrolled_blocks_run_under_the_scopes_of_the_scans_iterations(example: tuple[Any, Any]) -> None:
    unrolled = replace(SMALL, unroll=True, checkpoint=False)
    stacks = [str(e.source_info.name_stack) for e in jax.make_jaxpr(unrolled.forward)(*example).jaxpr.eqns]
    for number, part in itertools.product(range(2), ("attn/query", "attn/softmax", "mlp/gelu", "norm1", "add2")):
        assert any(stack.startswith(f"block[{number}]/{part}") for stack in stacks)


@pytest.mark.parametrize("changed", range(6))
def test_a_token_changes_logits_from_its_position_on_and_none_before(changed: int, example: tuple[Any, Any]) -> None:
    variables, batch = example
    tokens = batch["tokens"]
    other = {**batch, "tokens": tokens.at[:, changed].set((tokens[:, changed] + 1) % SMALL.vocabulary)}
    difference = np.abs(SMALL_FORWARD(variables, batch) - SMALL_FORWARD(variables, other)).max(axis=(0, 2))
    np.testing.assert_array_equal(difference[:changed], 0)
    assert (difference[changed:] > 0).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_causal_softmax_weighs_what_is_visible_and_exactly_nothing_else(dtype: Any) -> None:
    weights = causal_softmax(jax.random.normal(jax.random.key(0), (2, 3, 5, 5)).astype(dtype)).astype(jnp.float32)
    np.testing.assert_array_equal(np.triu(weights, k=1), 0)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=0.02)


def test_targets_are_the_tokens_one_step_on() -> None:
    batch = Transformer().batch(jax.random.key(0), 5)
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])


def test_a_text_counts_in_equal_steps() -> None:
    tokens = np.asarray(Transformer().batch(jax.random.key(0), 5)["tokens"])
    assert (np.ptp(np.diff(tokens) % 256, axis=1) == 0).all()


def test_a_width_that_does_not_divide_among_the_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="width 10 does not divide among 4 heads"):
        Transformer(width=10, heads=4)
