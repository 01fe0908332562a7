"""A kernel that is flipped as no other is comes before a step that only one program has, unless it is transposed."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

DRAW = np.random.default_rng(5).normal
KERNELS = {
    name: DRAW(size=shape).astype(np.float32) / 4
    for name, shape in {"one": (8, 8, 3, 3), "two": (32, 8, 3, 3), "merge": (6, 16, 3, 3), "up": (6, 5, 2, 2)}.items()
}
IMAGES = DRAW(size=(4, 8, 6, 6)).astype(np.float32)
TARGET = DRAW(size=(4, 5, 24, 24)).astype(np.float32)


def _of_torch(weights: Any, batch: Any) -> Any:
    """Channels first, and a name for the shuffle of pixels."""

    def conv(name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return jax.lax.conv(x, weights[name]["weight"], (1, 1), "SAME")

    skip = jax.nn.silu(conv("one", batch["x"]))
    with jax.named_scope("shuffle"):
        b, _, h, w = (x := jax.nn.silu(conv("two", skip))).shape
        x = x.reshape(b, 8, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(b, 8, 2 * h, 2 * w)
    x = jnp.concatenate([jnp.repeat(jnp.repeat(skip, 2, 2), 2, 3), x], 1)
    x = jnp.tanh(conv("merge", x))
    with jax.named_scope("double"):
        x = x * 2 + jnp.sin(x)
    with jax.named_scope("up"):
        x = jnp.einsum("bchw,cdij->bdhiwj", x, weights["up"]["weight"]).reshape(b, 5, 24, 24)
    return jnp.square(x - batch["y"]).mean()


def _of_flax(fault: str, weights: Any, batch: Any) -> Any:
    """Channels last, and a transposed convolution whose kernel is flipped, as libraries keep it."""

    def conv(name: str, x: Any) -> Any:
        with jax.named_scope(name):
            kernel = weights[name]["kernel"]
            return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    skip = jax.nn.silu(conv("one", batch["x"]))
    b, h, w, _ = (x := jax.nn.silu(conv("two", skip))).shape
    if fault == "shuffle":
        x = x.reshape(b, h, w, 2, 2, 8).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, 8)
    else:
        x = x.reshape(b, h, w, 8, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(b, 2 * h, 2 * w, 8)
    x = jnp.concatenate([jnp.repeat(jnp.repeat(skip, 2, 1), 2, 2), x], -1)
    x = jnp.tanh(conv("merge", x))
    x = x * 2 + (jnp.cos(x) if fault == "double" else jnp.sin(x))
    with jax.named_scope("up"):
        kernel = weights["up"]["kernel"][::-1, ::-1]
        x = jnp.einsum("bhwc,ijcd->bhiwjd", x, kernel).reshape(b, 24, 24, 5)
    return jnp.square(x - batch["y"]).mean()


@cache
def _candidate(fault: str) -> Dump:
    kernels = {name: kernel.transpose(2, 3, 1, 0) for name, kernel in KERNELS.items()}
    kernels["up"] = KERNELS["up"].transpose(2, 3, 0, 1)[::-1, ::-1]
    if fault == "flip":
        kernels["merge"] = kernels["merge"][::-1, ::-1]
    batch = {"x": IMAGES.transpose(0, 2, 3, 1), "y": TARGET.transpose(0, 2, 3, 1)}
    weights = {name: {"kernel": np.ascontiguousarray(kernel)} for name, kernel in kernels.items()}
    return gs.capture(lambda weights, batch: _of_flax(fault, weights, batch), weights, batch)


def _sentence(fault: str) -> str:
    weights = {name: {"weight": kernel} for name, kernel in KERNELS.items()}
    reference = gs.capture(_of_torch, weights, {"x": IMAGES, "y": TARGET})
    return gs.compare(reference, _candidate(fault)).sentence


@pytest.mark.slow
def test_a_kernel_that_is_flipped_by_mistake_comes_first() -> None:
    found = _sentence("flip")
    assert found.startswith("Forward differs at `merge` ("), found
    assert "and before it `shuffle` is only in the reference" in found
    assert "`merge/weight` (transpose [3, 2, 0, 1], flip [2, 3])" in found


def test_a_step_comes_first_where_kernels_agree_or_belong_to_a_transposed_convolution() -> None:
    assert _sentence("").startswith("Same within tolerance"), _sentence("")
    assert _sentence("shuffle").startswith("Forward first differs at `shuffle`, only in the reference")
    assert _sentence("double").startswith("Forward first differs at `double`, only in the reference")
