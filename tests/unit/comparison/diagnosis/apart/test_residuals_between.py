"""A residual sum inside of a layer is its branch with the sum outside, and a connection that is left out is a fault."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import permutations
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

LAYERS, WIDTH = 2, 6
_draw = np.random.default_rng(59).normal
WEIGHTS = {
    "first": _draw(size=(WIDTH, WIDTH)).astype(np.float32) / 2,
    "layers": _draw(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / 2,
    "head": _draw(size=(WIDTH, 3)).astype(np.float32),
}
ROWS = _draw(size=(8, WIDTH)).astype(np.float32)

Fault = Literal["", "no skip", "half", "relu behind"]


@cache
def _program(
    *,
    inside: bool = True,
    scanned: bool = True,
    product: bool = False,
    outer: str = "",
    name: str = "layers",
    returned: bool = False,
    fault: Fault = "",
) -> Dump:
    """Residual layers.

    Args:
        inside: Whether the layers have the sums inside.
        scanned: Whether they are scanned.
        product: Whether the layers are only around their products, with the functions and the sums outside.
        outer: A scope around all layers.
        name: The name of the layers.
        returned: Whether the scan returns all sums, the last of which is read.
        fault: What is wrong.
    """

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = x @ weights["first"]
        x = jnp.tanh(x)

        def body(x: Any, kernel: Any) -> Any:
            def summed(y: Any) -> Any:
                return y if fault == "no skip" else x + (0.5 * y if fault == "half" else y)

            with jax.named_scope(name):
                y = x @ kernel
                y = y if product else jnp.tanh(y)
                y = summed(y) if inside else y
            y = jnp.tanh(y) if product else y
            y = y if inside else summed(y)
            return y, y if returned else None

        with jax.named_scope(outer) if outer else nullcontext():
            if scanned:
                x, sums = lax.scan(body, x, weights["layers"])
                x = sums[-1] if returned else x
            else:
                for number in range(LAYERS):
                    x, _ = body(x, weights["layers"][number])
        x = jax.nn.relu(x) if fault == "relu behind" else x
        with jax.named_scope("head"):
            return jnp.square(x @ weights["head"]).mean()

    return gs.capture(loss, WEIGHTS, ROWS, origins=False)


def test_a_sum_inside_of_a_layer_is_the_same_outside_of_it() -> None:
    programs = {
        "inside": _program(),
        "outside": _program(inside=False),
        "returned": _program(inside=False, returned=True),
        "outer": _program(outer="stack"),
        "unrolled": _program(inside=False, scanned=False),
        "other": _program(inside=False, name="body"),
        "product": _program(inside=False, product=True),
    }
    pairs = [(one, other) for one, other in permutations(programs, 2) if "inside" in (one, other) or one == "outer"]
    for one, other in pairs:
        found = gs.compare(programs[one], programs[other])
        assert found.verdict == "same", f"{one} against {other}: {found.sentence}"


@pytest.mark.slow
@sampled("inside", [True, False])
@pytest.mark.parametrize(("fault", "first"), [("no skip", "`layers["), ("half", "`layers["), ("relu behind", "`head`")])
def test_a_fault_is_at_its_layer_where_the_sums_are_elsewhere(inside: bool, fault: Fault, first: str) -> None:
    found = gs.compare(_program(inside=inside), _program(inside=not inside, fault=fault))
    assert found.sentence.startswith(f"Forward first differs at {first}"), found.sentence


def _normalised(x: Any, weight: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight[None]


@cache
def _blocks(names: tuple[str, str], *, inside: bool, share: float = 0.5) -> Dump:
    """Two branches of a stream, each a norm and two layers, of which the second is added in part."""
    draw = np.random.default_rng(7).normal
    shapes = {"scale": (WIDTH,), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    weights = [{part: (draw(size=shape) / 2).astype(np.float32) for part, shape in shapes.items()} for _ in range(2)]
    last = {"norm": 1 + (draw(size=WIDTH) / 4).astype(np.float32), "head": WEIGHTS["head"]}

    def branch(own: Any, x: Any) -> Any:
        with jax.named_scope("norm"):
            y = _normalised(x, own["scale"])
        with jax.named_scope("up"):
            y = y @ own["up"]
        y = jnp.tanh(y)
        with jax.named_scope("down"):
            y = own["down"].T @ y.T
        return y.T  # so that a block without the sum has a value of its own

    def loss(params: Any, x: Any) -> Any:
        for name, factor in zip(names, (1.0, share), strict=True):
            with jax.named_scope(name):
                y = branch(params[name], x)
                x = x + factor * y if inside else x
            x = x if inside else x + factor * y
        with jax.named_scope("last_norm"):
            x = _normalised(x, params["norm"])
        with jax.named_scope("head"):
            return jnp.square(x @ params["head"]).mean()

    return gs.capture(loss, {**dict(zip(names, weights, strict=True)), **last}, ROWS, origins=False)


@pytest.mark.slow
def test_a_branch_of_several_layers_is_no_counterpart_of_the_sum_with_it_where_a_fault_is_behind() -> None:
    reference = _blocks(("conv_module", "mlp"), inside=False)
    assert gs.compare(reference, _blocks(("conv", "ff"), inside=True)).verdict == "same"
    found = gs.compare(reference, _blocks(("conv", "ff"), inside=True, share=2.0))
    first = found.first_divergence.forward
    assert first is not None
    assert first.name in ("mlp", "last_norm")  # the first is paired with the sum in `ff`, which is wrong
