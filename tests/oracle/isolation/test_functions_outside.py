"""One program has a function inside of a layer and the other has one behind it: only that layer is wrong."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.oracle.isolation.isolating import Loss, of_losses, wrong
from tests.support.sampled import sampled

DRAW = np.random.default_rng(0).normal
WEIGHTS = {
    name: DRAW(size=size).astype(np.float32) for name, size in (("first", (5, 8)), ("second", (8, 6)), ("head", (6, 3)))
}
BATCH = {"x": DRAW(size=(7, 5)).astype(np.float32)}
FUNCTIONS = {"": lambda x: x, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


def _loss(inside: str, behind: str, sign: float = 1.0) -> Loss:
    """Three layers, with a function inside of the first one and one behind it."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            x = FUNCTIONS[inside](batch["x"] @ weights["first"])
        x = FUNCTIONS[behind](x)
        with jax.named_scope("second"):
            x = jnp.tanh(x @ weights["second"])
        with jax.named_scope("head"):
            return sign * jnp.square(x @ weights["head"]).mean()

    return loss


@pytest.mark.slow
@sampled(
    ("reference", "candidate"),
    [
        (("relu", ""), ("", "gelu")),
        (("relu", ""), ("", "")),
        (("relu", ""), ("gelu", "")),
        (("gelu", ""), ("", "silu")),
        (("", "relu"), ("gelu", "")),
    ],
)
def test_only_the_layer_with_another_function_is_wrong(reference: tuple[str, str], candidate: tuple[str, str]) -> None:
    found = of_losses(_loss(*reference), _loss(*candidate), WEIGHTS, BATCH)
    assert wrong(found) == ["first"], found.sentence()


def test_what_reads_a_value_on_another_side_of_a_function_is_not_judged() -> None:
    found = of_losses(_loss("relu", ""), _loss("", "gelu"), WEIGHTS, BATCH)
    reasons = {each.name: each.why for each in found.left_out}
    assert reasons["activation/second"] == (
        "it is computed from first, which in the reference is the relu of that in the candidate"
    )
    behind = of_losses(_loss("relu", ""), _loss("", "gelu", -1.0), WEIGHTS, BATCH)
    assert wrong(behind) == ["first", "head"]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["relu", "gelu", "silu"])
def test_a_function_behind_a_layer_is_no_difference_whatever_the_layer_behind_applies(function: str) -> None:
    one, other = (gs.capture(_loss(*each), WEIGHTS, BATCH, origins=False) for each in ((function, ""), ("", function)))
    assert gs.compare(one, other).verdict == "same"
    assert gs.compare(other, one).verdict == "same"
