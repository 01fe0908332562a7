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


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("fault", "first"), [("no skip", "`layers["), ("half", "`layers["), ("relu behind", "`head`")])
def test_a_fault_is_at_its_layer_where_the_sums_are_elsewhere(inside: bool, fault: Fault, first: str) -> None:
    found = gs.compare(_program(inside=inside), _program(inside=not inside, fault=fault))
    assert found.sentence.startswith(f"Forward first differs at {first}"), found.sentence
