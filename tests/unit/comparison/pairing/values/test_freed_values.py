"""A value whose name was that of another step is paired with the one that has its values."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH = 6
BLOCK = {"gamma": 0.4 + 0.1 * drawn(1, WIDTH), "up": {"kernel": drawn(2, WIDTH, WIDTH)}}
WEIGHTS = {"block": BLOCK, "out": {"kernel": drawn(3, WIDTH, 2)}}


@cache
def _scaled(*, scoped: bool, twice: bool = False) -> Dump:
    """The dump of a block with a scaled branch, which a program without scopes has an entry for that is called so."""

    def scope(name: str) -> Any:
        return jax.named_scope(name) if scoped else nullcontext()

    def block(w: Any, x: Any) -> Any:
        gamma = w["gamma"][None]
        with scope("up"):
            h = x @ w["up"]["kernel"]
        h = jnp.tanh(h)
        h = h * gamma
        x = x + h
        return x * gamma if twice else x

    def loss(weights: Any, x: Any) -> Any:
        with scope("block"):
            x = block(weights["block"], x)
        with scope("out"):
            x = jnp.tanh(x) @ weights["out"]["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, WEIGHTS, drawn(4, 5, WIDTH), origins=False)


def test_a_sum_called_as_its_term_is_paired_with_the_step_that_makes_it() -> None:
    reference = _scaled(scoped=True)
    assert gs.compare(reference, _scaled(scoped=False)).verdict == "same"
    found = gs.compare(reference, _scaled(scoped=False, twice=True))
    rows = {row.name: row for row in found.rows if row.family == "activation" and row.status == "same"}
    assert "block" in rows, found.sentence
    assert rows["block"].counterpart.startswith("block:"), found.sentence
