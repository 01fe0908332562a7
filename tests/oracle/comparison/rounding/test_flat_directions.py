"""A value that a softmax does not depend on has a gradient of nothing but rounding, whatever step has no scope."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import drawn

NODES, FEATURES = 7, 5
WEIGHTS = {"lin": drawn(1, FEATURES, FEATURES), "src": drawn(2, FEATURES, 1), "dst": drawn(3, FEATURES, 1)}
BATCH = {"x": drawn(4, NODES, FEATURES)}


def _attention(*, ported: bool, dtype: Any = jnp.float32) -> gs.Dump:
    """A graph attention of dense scores: what a node's own scores add is the same for all of its neighbours."""

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        weights, batch = jax.tree.map(lambda each: each.astype(dtype), (weights, batch))
        with jax.named_scope("conv" if ported else "attention"):
            with jax.named_scope("lin"):
                hidden = batch["x"] @ weights["lin"]
            with jax.named_scope("src"):
                own = hidden @ weights["src"]
            with jax.named_scope("dst"):
                others = hidden @ weights["dst"]
            scores = own + others.T
            if ported:
                powers = jnp.exp(scores - scores.max(1, keepdims=True))
                x = (powers / powers.sum(1, keepdims=True)) @ hidden
            else:
                x = jax.nn.softmax(scores, axis=1) @ hidden
        return jnp.square(x.astype(jnp.float32)).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, WEIGHTS, BATCH, origins=False)


def test_the_gradient_of_what_a_softmax_does_not_depend_on_is_no_difference() -> None:
    ref, cand = _attention(ported=False), _attention(ported=True)
    name = "activation_grad/attention/src"
    one, two = np.asarray(ref.source.array(name)), np.asarray(cand.source.array(name.replace("attention", "conv")))
    assert np.linalg.norm(two - one) > 0.1 * np.linalg.norm(one)
    found = gs.compare(ref, cand)
    assert found.verdict == "same", found.sentence
    narrow = gs.compare(ref, _attention(ported=True, dtype=jnp.bfloat16))
    assert narrow.verdict == "same", narrow.sentence


@pytest.mark.parametrize("times", [1.0, 1.5])
def test_the_gradient_of_a_branch_that_adds_very_little_is_none_of_rounding(times: float) -> None:
    """ConvNeXt scales its branches by 1e-6 at first, and Adam follows gradients of any size."""

    def branch(*, backward: float) -> gs.Dump:
        def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
            with jax.named_scope("lin"):
                hidden = batch["x"] @ weights["lin"]
            tilted = backward * hidden - jax.lax.stop_gradient((backward - 1) * hidden)
            with jax.named_scope("block"):
                x = batch["x"] + 1e-6 * jnp.tanh(tilted)
            return jnp.square(x).mean()

        return gs.capture(loss, {"lin": WEIGHTS["lin"]}, BATCH, origins=False)

    found = gs.compare(branch(backward=1.0), branch(backward=times))
    assert found.verdict == ("same" if times == 1.0 else "different")
