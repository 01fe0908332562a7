"""What a parameter is used for: the codes of a quantisation are compared with and looked up, and mix no signal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import evenly

PARAMS = {
    "encoder": {"w": evenly(-1.0, 1.3, 16, 8)},
    "vq": {"codes": evenly(-0.02, 0.017, 32, 8)},
    "decoder": {"w": evenly(-0.9, 1.1, 8, 16)},
}
X = evenly(-1.1, 0.9, 12, 4, 16)


def _quantized(signal: Any, codes: Any, looked_up: str) -> tuple[Any, Any]:
    sizes = jnp.square(codes).sum(-1)[None, None]
    index = (jnp.square(signal).sum(-1, keepdims=True) - 2 * signal @ codes.T + sizes).argmin(-1)
    nearest = {
        "index": lambda: codes[index],
        "take": lambda: jnp.take(codes, index, axis=0),
        "one_hot": lambda: jax.nn.one_hot(index, len(codes)) @ codes,
    }[looked_up]()
    stopped = jax.lax.stop_gradient
    committed = jnp.square(stopped(signal) - nearest).mean() + 0.25 * jnp.square(signal - stopped(nearest)).mean()
    return committed, signal + stopped(nearest - signal)


def _loss(looked_up: str) -> Any:
    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("encoder"):
            signal = x @ params["encoder"]["w"]
        with jax.named_scope("vq"):
            committed, signal = _quantized(signal, params["vq"]["codes"], looked_up)
        with jax.named_scope("decoder"):
            answer = signal @ params["decoder"]["w"]
        return jnp.square(answer - x).mean() + committed

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("looked_up", ["index", "take", "one_hot"])
def test_the_codes_of_a_quantisation_are_no_weights_that_change_a_signal(looked_up: str) -> None:
    dump = gs.capture(_loss(looked_up), PARAMS, X)
    layers = {layer.path: layer for layer in dump.manifest.layers}
    assert layers["vq"].elementwise == ("vq/codes",)
    assert layers["encoder"].elementwise == layers["decoder"].elementwise == ()
    assert not [found for found in dump.findings() if found.rule == "init"]


def test_small_weights_of_a_layer_are_found_all_the_same() -> None:
    def loss(params: Any, x: Any) -> Any:
        for name in ("encoder", "vq", "decoder"):
            with jax.named_scope(name):
                x = x @ params[name]["w"]
        return jnp.square(x - 1).mean()

    params = {**PARAMS, "vq": {"w": evenly(-0.02, 0.017, 8, 8)}}
    assert [found.rule for found in gs.capture(loss, params, X).findings()] == ["init"]
