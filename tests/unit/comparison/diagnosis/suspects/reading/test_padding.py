"""A convolution that goes on otherwise behind the edges is at fault, and not a step that only one program has."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(17).normal
KERNELS = {"first": _draw(size=(3, 3, 2, 4)), "second": _draw(size=(3, 3, 4, 3))}
IMAGE = _draw(size=(2, 5, 5, 2)).astype(np.float32)


@cache
def _convolutions(mode: str, *, ported: bool) -> Dump:
    """Two convolutions with a rectifier between them, for which a port has no scope."""

    def convolve(x: Any, kernel: Any, mode: str) -> Any:
        padded = jnp.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode=mode)
        return jax.lax.conv_general_dilated(padded, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Conv_0" if ported else "first"):
            x = convolve(x, weights["first"], "constant")
        if ported:
            x = jax.nn.relu(x)
        else:
            with jax.named_scope("relu"):
                x = jax.nn.relu(x)
        with jax.named_scope("Conv_1" if ported else "second"):
            x = convolve(x, weights["second"], mode)
        return jnp.square(x).mean()

    weights = {name: kernel.astype(np.float32) for name, kernel in KERNELS.items()}
    return gs.capture(loss, weights, IMAGE, origins=False)


@pytest.mark.parametrize(("modes"), [("constant", "wrap"), ("constant", "reflect"), ("edge", "constant")])
def test_a_convolution_that_pads_otherwise_is_named_itself(modes: tuple[str, str]) -> None:
    found = gs.compare(_convolutions(modes[0], ported=False), _convolutions(modes[1], ported=True))
    assert found.first_divergence.forward is not None, found.sentence
    assert found.first_divergence.forward.name == "second", found.sentence
    assert not found.blame.suspects, found.sentence
