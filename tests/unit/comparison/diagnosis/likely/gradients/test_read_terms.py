"""What a layer contributes to the gradient of an input that others read, too, is told where one program lacks it."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

NAMES = ("query", "key", "value")
_WEIGHTS = {name: drawn(number, 4, 4) for number, name in enumerate(NAMES)}


@cache
def _captured(stopped: str = "", *, of_port: bool = False) -> Dump:
    """Three layers read a text, some of them behind a `stop_gradient`."""

    def read(weights: Any, name: str, x: Any) -> Any:
        x = jax.lax.stop_gradient(x) if name in stopped.split() else x
        with jax.named_scope(name.upper() if of_port else name):
            return x @ weights[name]

    def loss(weights: Any, batch: Any) -> Any:
        query, key, value = (read(weights, name, batch["text"]) for name in NAMES)
        return jnp.square(jax.nn.softmax(query @ key.swapaxes(1, 2)) @ value).mean()

    return gs.capture(loss, _WEIGHTS, {"text": drawn(7, 2, 5, 4)}, origins=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_is_told_that_contributes_in_one_program_alone(name: str) -> None:
    right = _captured()
    assert gs.compare(right, _captured(of_port=True)).verdict == "same"
    found = gs.compare(right, _captured(name, of_port=True)).sentence
    assert f"; the gradient of `text` lacks what `{name}` contributes to the reference's" in found, found
    found = gs.compare(_captured(name), _captured(of_port=True)).sentence
    assert f"; the gradient of `text` has what `{name.upper()}` contributes beside the reference's" in found, found


def test_of_several_none_is_told() -> None:
    found = gs.compare(_captured(), _captured("key value", of_port=True))
    assert found.verdict == "different"
    assert "contributes" not in found.sentence, found.sentence
