"""Which rows of its table an embedding looks up is told, where the programs look up others."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

TOKENS = jnp.array([[3, 1, 4, 1], [5, 2, 0, 3]], jnp.int32)


@cache
def _embedded(*, of_port: bool, offset: int = 0, other: bool = False) -> gs.Dump:
    """Returns the dump of embeddings of tokens and of positions, which are added up."""
    tokens, positions, head = ("Embed_0", "Embed_1", "Dense_0") if of_port else ("tokens", "positions", "head")

    def loss(weights: Any, batch: Any) -> Any:
        looked_up = batch["x"].at[1, 2].set(6) if other else batch["x"]
        with jax.named_scope(tokens):
            x = weights["tokens"][looked_up]
        with jax.named_scope(positions):
            y = weights["positions"][jnp.arange(4) + offset]
        with jax.named_scope(head):
            x = jnp.tanh(x + y[None]) @ weights["head"]
        return jnp.square(x).mean()

    weights = {"tokens": drawn(1, 7, 5), "positions": drawn(2, 9, 5), "head": drawn(3, 5, 2)}
    return gs.capture(loss, weights, {"x": TOKENS}, origins=False)


@pytest.mark.parametrize(
    ("fault", "name", "rows", "others"),
    [
        ({"offset": 1}, "positions", "the rows [0, 1, 2, ...]", "the rows [1, 2, 3, ...]"),
        ({"other": True}, "tokens", "the row 0", "the row 6"),
    ],
)
def test_the_rows_are_told_that_differ(fault: dict[str, Any], name: str, rows: str, others: str) -> None:
    reference = _embedded(of_port=False)
    assert gs.compare(reference, _embedded(of_port=True)).verdict == "same"
    sentence = gs.compare(reference, _embedded(of_port=True, **fault)).sentence
    assert sentence.startswith(f"Forward first differs at `{name}` ("), sentence
    assert f", which looks up {rows} of `{name}`, and in the candidate {others}." in sentence, sentence


@cache
def _bag(pool: str, *, of_port: bool = False) -> gs.Dump:
    """Returns the dump of a bag of embeddings, of which row 0 is padding."""
    bag, head = ("Bag_0", "Dense_0") if of_port else ("bag", "head")

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(bag):
            x = weights["tokens"][batch["x"]]
            kept = (batch["x"] != 0)[..., None].astype(jnp.float32)
            x = {"mean": (x * kept).sum(1) / kept.sum(1), "all": x.mean(1), "sum": (x * kept).sum(1)}[pool]
        with jax.named_scope(head):
            x = jnp.tanh(x) @ weights["head"]
        return jnp.square(x).mean()

    weights = {"tokens": drawn(1, 7, 5), "head": drawn(3, 5, 2)}
    return gs.capture(loss, weights, {"x": TOKENS}, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["all", "sum"])
def test_a_bag_decides_by_itself_which_rows_it_adds_up(pool: str) -> None:
    assert gs.compare(_bag("mean"), _bag("mean", of_port=True)).verdict == "same"
    sentence = gs.compare(_bag("mean"), _bag(pool, of_port=True)).sentence
    assert sentence.startswith("Forward first differs at `bag` ("), sentence
    assert "in what it reads" not in sentence, sentence
