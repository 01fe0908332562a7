"""A coupling layer returns a value and a term of the loss, and each fault is blamed on the step of the one it is in."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_draw = np.random.default_rng(31).normal
WEIGHTS = {
    "in": (_draw(size=(6, 6)) / 2).astype(np.float32),
    **{f"{part}{number}": (_draw(size=(3, 3)) / 2).astype(np.float32) for part in "st" for number in range(2)},
    "head": (_draw(size=(6, 4)) / 2).astype(np.float32),
}
BATCH = {"x": _draw(size=(5, 6)).astype(np.float32)}


@cache
def _flow(*, port: bool, fault: str = "") -> Dump:
    """Two couplings, of which a port has no scopes inside."""

    def scope(name: str) -> Any:
        return nullcontext() if port else jax.named_scope(name)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "in"):
            z = batch["x"] @ weights["in"]
        total = jnp.zeros(len(z))
        for number in range(2):
            wrong = fault if number == 1 else ""
            with jax.named_scope(f"Coupling_{number}" if port else f"flow/{number}"):
                a, b = jnp.split(z, 2, -1)
                with scope("scale"):
                    s = jnp.tanh(a @ weights[f"s{number}"])
                with scope("shift"):
                    t = a @ weights[f"t{number}"]
                with scope("affine"):
                    b = b / jnp.exp(s) - t if wrong == "inverse" else b * jnp.exp(s) + t
                with scope("determinant"):
                    total = total - s.sum(-1) if wrong == "sign" else total + s.sum(-1)
                z = jnp.concatenate([b, a], -1)
        with jax.named_scope("Dense_1" if port else "head"):
            y = z @ weights["head"]
        return (jnp.square(y).sum(-1) + 100.0 - total).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@sampled(("fault", "first"), [("sign", "flow/1/determinant"), ("inverse", "flow/1/affine")])
def test_the_step_of_a_coupling_is_named(fault: str, first: str) -> None:
    reference = _flow(port=False)
    for one, other in ((reference, _flow(port=True)), (_flow(port=True), reference)):
        assert gs.compare(one, other).verdict == "same"
    found = gs.compare(reference, _flow(port=True, fault=fault))
    assert found.sentence.startswith(f"Forward first differs at `{first}`"), found.sentence
    assert [row.name for row in found.blame.suspects] == ([first] if fault == "inverse" else [])
