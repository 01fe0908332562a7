"""Of a layer and one behind it that returns what it reads, the first is paired with the only one of another program."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

WEIGHTS = {"kernel": drawn(1, 24, 5)}
IMAGE = drawn(2, 4, 3, 2, 4)


@cache
def captured(axes: tuple[int, ...], *, identities: int, names: tuple[str, ...]) -> gs.Dump:
    """Returns the dump of a dense layer behind an image that is flattened, with some dropouts in evaluation between."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(names[0]):
            x = jnp.tanh(x)
        with jax.named_scope(names[1]):
            x = x.transpose(0, *axes).reshape(len(x), -1) * 3.0  # as an identity, a product at last
        for number in range(identities):
            with jax.named_scope(f"dropout{number}"):
                x = x * 1.0
        with jax.named_scope(names[2]):
            x = x @ weights["kernel"]
        return jnp.square(x).mean()

    return gs.capture(loss, WEIGHTS, IMAGE, origins=False)


@sampled(("ours", "theirs"), [(2, 0), (0, 1), (1, 2)])
def test_the_layer_that_makes_a_value_is_named_and_not_those_that_return_it(ours: int, theirs: int) -> None:
    one = captured((1, 2, 3), identities=ours, names=("act", "flatten", "fc"))
    port = ("tanh", "to_vector", "dense")
    assert gs.compare(one, captured((1, 2, 3), identities=theirs, names=port)).verdict == "same"
    found = gs.compare(one, captured((3, 2, 1), identities=theirs, names=port))
    first = found.first_divergence.forward
    assert first is not None
    assert (first.name, first.counterpart) == ("flatten", "to_vector"), found.sentence
