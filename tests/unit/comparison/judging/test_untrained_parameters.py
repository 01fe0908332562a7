"""A port may lack a parameter that no gradient reaches: it is told beside the verdict, and counts otherwise."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

OWN, PORTED = ("first", "last"), ("Dense_0", "Dense_1")


@cache
def captured(names: tuple[str, str], pooled: str = "", factor: float = 1.0) -> gs.Dump:
    """Returns the dump of a network that may have a pooler.

    Args:
        names: The names of its layers.
        pooled: What the loss does with the pooler: nothing if "unread", or it reads the output that is "cut" off its
            gradient, or "read"; "" without a pooler.
        factor: What the output of the last layer is multiplied by.
    """

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(names[0]):
            x = jnp.tanh(x @ weights[names[0]])
        with jax.named_scope("pooler"):
            pooled_value = jnp.tanh(x @ weights["pooler"]).mean() if pooled else jnp.float32(0)
        with jax.named_scope(names[1]):
            x = factor * (x @ weights[names[1]])
        read = {"unread": jnp.zeros_like, "cut": jax.lax.stop_gradient}.get(pooled, jnp.asarray)
        return jnp.square(x).mean() + read(pooled_value)

    weights = {names[0]: drawn(0, 4, 5), names[1]: drawn(1, 5, 3)}
    weights |= {"pooler": drawn(2, 5, 5)} if pooled else {}
    return gs.capture(loss, weights, drawn(9, 3, 4), origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(("ref", "cand", "side"), [("unread", "", "reference"), ("", "unread", "candidate")])
def test_a_parameter_that_no_gradient_reaches_is_told_and_does_not_count(ref: str, cand: str, side: str) -> None:
    found = gs.compare(captured(OWN, ref), captured(PORTED, cand))
    assert found.verdict == "same", found.sentence
    assert f"the {side} has 1 untrained parameter that the" in found.sentence
    assert "`pooler`" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("pooled", ["read", "cut"])
def test_one_that_the_loss_reads_counts(pooled: str) -> None:
    for found in (
        gs.compare(captured(OWN, pooled), captured(PORTED)),
        gs.compare(captured(OWN), captured(PORTED, pooled)),
    ):
        assert found.verdict == "different"


def test_it_is_told_as_missing_where_anything_else_differs() -> None:
    found = gs.compare(captured(OWN, "unread"), captured(PORTED, factor=1.1))
    assert found.verdict == "different"
    assert "untrained" not in found.sentence


def test_the_same_program_has_lost_it() -> None:
    assert gs.compare(captured(OWN, "unread"), captured(OWN)).verdict == "different"
