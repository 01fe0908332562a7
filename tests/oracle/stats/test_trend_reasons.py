"""What a trend of gradients says of the kernels is what their distribution and the functions between them make."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from tests.support.sampled import sampled

WIDTHS = (40, 36, 32, 44, 40, 38, 42, 36, 40, 32, 36, 44, 40)
HALF = 2**0.5


def normalised(x: Any) -> Any:
    return (x - x.mean(0, keepdims=True)) / jnp.sqrt(x.var(0, keepdims=True) + 1e-5)


def reason(function: Callable[[Any], Any], gain: float, *, norm: bool = False, conv: bool = False) -> tuple[str, str]:
    """Returns the rule of the only finding of a deep network of random kernels of a gain, and what it says of them."""
    random = np.random.default_rng(0)
    pairs = [*itertools.pairwise(WIDTHS)] * (4 if norm else 2)
    kernels = {
        f"layer{n:02}": random.normal(0, gain / np.sqrt((3 if conv else 1) * i), ((3,) if conv else ()) + (i, o))
        for n, (i, o) in enumerate(pairs if not conv else pairs[:12])
    }
    x = random.normal(size=(8, 40, 40) if conv else (64, 40))

    def loss(params: Any, x: Any) -> Any:
        for name, kernel in params.items():
            with jax.named_scope(name):
                if conv:
                    x = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
                else:
                    x = x @ kernel
                x = function(normalised(x) if norm else x)
        return (x**2).mean()

    captured = gs.capture(loss, jax.tree_util.tree_map(jnp.float32, kernels), jnp.float32(x))
    found = [each for each in captured.findings() if each.rule in ("vanishing", "exploding")]
    return (found[0].rule, found[0].why.partition(" layers; ")[2]) if found else ("", "")


def identity(x: Any) -> Any:
    return x


@sampled(
    ("function", "gain", "options", "rule", "said"),
    [
        (identity, 0.6, {}, "vanishing", r"the kernels shrink it by 1.6\d each: their weights have 0.\d* times "),
        (jnp.tanh, 0.3, {"conv": True}, "vanishing", r"the kernels shrink it by 3.3\d* each: their weights have 0"),
        (identity, 1.8, {}, "exploding", r"the kernels grow it by 1.8\d* each: their weights have 1.8\d* times "),
        (jax.nn.relu, 1.0, {}, "vanishing", r"not by the kernels, which change it by (0.99\d*|1|1.0\d*) each, but"),
        (jax.nn.relu, 0.8, {}, "vanishing", r"the kernels shrink it by 1.2\d each, and what is between them by 1.[34]"),
        (jax.nn.sigmoid, 1.0, {}, "vanishing", ".* them, as a sigmoid, whose derivative is at most 0.25"),
        # A normalisation takes the scale of kernels out of the gradient: 1.41 each is not why it grows.
        (jax.nn.relu, HALF, {"norm": True}, "exploding", ""),
    ],
)  # fmt: skip
def test_kernels_or_what_is_between_them(
    function: Callable[[Any], Any], gain: float, options: Any, rule: str, said: str
) -> None:
    found, words = reason(function, gain, **options)
    assert found == rule, (found, words)
    assert re.match(said, words) if said else not words, words


@sampled("places", [16, 20])
def test_nothing_is_said_of_kernels_whose_axes_are_not_known(places: int) -> None:
    """Where an image has as many places as channels, two axes of a kernel may be those of its outputs."""
    random = np.random.default_rng(0)
    kernels = {f"layer{n:02}": jnp.float32(random.normal(0, 0.25 / 12, (3, 3, 16, 16))) for n in range(14)}
    x = jnp.float32(random.normal(size=(4, places, places, 16)))

    def loss(params: Any, x: Any) -> Any:
        for name, kernel in params.items():
            with jax.named_scope(name):
                x = jnp.tanh(
                    jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
                )
        return (x**2).mean()

    (found,) = (each for each in gs.capture(loss, kernels, x).findings() if each.rule == "vanishing")
    assert bool(re.search(r"the kernels shrink it by (3.9\d|4|4.0\d) each", found.why)) is (places != 16)
    assert ("kernels" in found.why) is (places != 16)
