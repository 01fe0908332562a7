"""A product of joined values is no pair with one of the products that another program adds up."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

NODES, EDGES, WIDTH = 5, 8, 6
ENDS = np.random.default_rng(3).integers(0, NODES, (2, EDGES))


@cache
def _messages(*, joined: bool, to: int = 1) -> Dump:
    """The dump of messages along edges, whose kernel is one for what is joined, or one for each end and the edge."""
    kernel, bias = drawn(1, 3 * WIDTH, WIDTH), drawn(2, WIDTH)
    parts = {"source": {"kernel": kernel[:WIDTH]}, "target": {"kernel": kernel[WIDTH : 2 * WIDTH]}}
    parts["edge"] = {"kernel": kernel[2 * WIDTH :], "bias": bias}
    weights = {"message": {"kernel": kernel, "bias": bias}} if joined else parts
    weights["out"] = {"kernel": drawn(4, WIDTH, WIDTH)}

    def loss(weights: Any, batch: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ weights[name]["kernel"] + weights[name].get("bias", jnp.zeros(WIDTH))[None]

        source, target = ENDS
        if joined:
            x = dense("message", jnp.concatenate([batch["nodes"][source], batch["nodes"][target], batch["edges"]], -1))
        else:
            x = dense("source", batch["nodes"])[source] + dense("target", batch["nodes"])[target]
            x = x + dense("edge", batch["edges"])
        x = jax.ops.segment_sum(jnp.tanh(x), ENDS[to], NODES)
        return jnp.square(dense("out", x)).mean()

    batch = {"nodes": drawn(5, NODES, WIDTH), "edges": drawn(6, EDGES, WIDTH)}
    return gs.capture(loss, weights, batch, origins=False)


def test_a_fault_behind_a_sum_of_products_is_not_said_to_be_in_one_of_them() -> None:
    reference = _messages(joined=True)
    assert gs.compare(reference, _messages(joined=False)).verdict == "same"
    found = gs.compare(reference, _messages(joined=False, to=0))
    assert not any(row.name == "message" and row.counterpart in ("source", "target", "edge") for row in found.rows)
    assert "`out` (" in found.sentence.partition(". Backward")[0], found.sentence
