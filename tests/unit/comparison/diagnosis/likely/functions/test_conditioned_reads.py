"""What a layer reads that a condition scales and shifts is told, behind an activation function, too."""

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
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

WIDTH, PARTS = 8, 5
READ = "the silu of `first` times 1 + part 2 of 5 of `condition` plus part 1 of 5 of `condition`"


@cache
def _block(*, scoped: bool, order: tuple[int, int] = (0, 1), one: float = 1.0) -> Dump:
    """The dump of a layer whose output parts of a condition scale and shift, in scopes or named by its lines."""
    weights = {name: {"kernel": drawn(seed, WIDTH, WIDTH)} for seed, name in enumerate(("first", "last"))}
    weights["condition"] = {"kernel": drawn(7, 3, PARTS * WIDTH)}

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name) if scoped else nullcontext():
                return x @ weights[name]["kernel"]

        x = dense("first", batch["x"])
        parts = jnp.split(dense("condition", batch["c"])[:, None], PARTS, -1)
        x = x * (one + parts[order[1]])
        x = x + parts[order[0]]
        return jnp.square(dense("last", jax.nn.silu(x))).mean()

    return gs.capture(loss, weights, {"x": drawn(8, 4, 6, WIDTH), "c": drawn(9, 4, 3)})


@sampled("scoped", [False, True])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"one": 0.0}, "the silu of `first` times part 2 of 5 of `condition` plus part 1 of 5 of `condition`"),
        ({"order": (1, 0)}, "the silu of `first` times 1 + part 1 of 5 of `condition` plus part 2 of 5 of `condition`"),
    ],
)
def test_what_a_condition_makes_of_a_value_is_told(scoped: bool, fault: dict[str, Any], words: str) -> None:
    reference = _block(scoped=True)
    assert gs.compare(reference, _block(scoped=scoped)).verdict == "same"
    found = gs.compare(reference, _block(scoped=scoped, **fault))
    assert found.sentence.startswith("Forward first differs at `last` "), found.sentence
    assert f", which reads {READ}, and in the candidate {words}. " in found.sentence, found.sentence
