"""What a program returns beside its loss needs no counterpart where a layer that is compared has its values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

OWN, PORTED = ("first", "second"), ("Dense_0", "Dense_1")


@cache
def captured(names: Sequence[str], returned: str = "") -> gs.Dump:
    """Returns the dump of a network, whose loss function may return its output, that doubled, its mean, or zeros."""

    def loss(weights: Any, x: Any) -> Any:
        for name in names:
            with jax.named_scope(name):
                x = jnp.tanh(x @ weights[name])
        with jax.named_scope("dead"):
            dead = jax.nn.relu(x - 9)
        value = jnp.square(x + dead).mean()
        results = {"output": x, "doubled": 2 * x, "mean": x.mean(), "zeros": jnp.zeros_like(x)}
        return (value, {"output": results[returned]}) if returned else value

    weights = {name: drawn(seed, 4, 4) for seed, name in enumerate(names)}
    return gs.capture(loss, weights, drawn(9, 3, 4), origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("names", [OWN, PORTED])
def test_an_output_that_only_the_candidate_returns_is_that_of_its_last_layer(names: Sequence[str]) -> None:
    found = gs.compare(captured(OWN), captured(names, "output"))
    assert found.verdict == "same"
    (row,) = (row for row in found.rows if row.family == "aux")
    assert (row.status, row.why) == ("extra", f"the values of {names[-1]}, which is compared")


def test_neither_does_one_count_that_only_the_reference_of_a_port_returns() -> None:
    assert gs.compare(captured(OWN, "output"), captured(PORTED)).verdict == "same"


def test_one_that_the_same_program_no_longer_returns_was_lost() -> None:
    assert gs.compare(captured(OWN, "output"), captured(OWN)).verdict == "different"


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["doubled", "mean", "zeros"])
def test_what_no_layer_returns_counts(returned: str) -> None:
    for ref, cand in ((captured(OWN), captured(PORTED, returned)), (captured(OWN, returned), captured(PORTED))):
        assert gs.compare(ref, cand).verdict == "different"
