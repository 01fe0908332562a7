"""A loss whose softmax is over the examples is told; contrastive losses, attention and rankings are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.classes_over_examples import classes_over_examples
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

PARAMS = {"w": filled(1.0, 8, 3), "v": filled(1.0, 8, 3), "out": filled(1.0, 3, 1)}
BATCH = {"x": filled(1.0, 4, 8), "y": filled(1, 4).astype(int), "z": filled(1.0, 4, 8)}


def picked(logs: Any, b: Any) -> Any:
    return -jnp.take_along_axis(logs, b["y"][:, None], 1).mean()


def picked_shares(z: Any, b: Any) -> Any:
    return jnp.take_along_axis(jax.nn.softmax(z, axis=0), b["y"][:, None], 1)[:, 0]


def contrasted(p: Any, b: Any) -> Any:
    scores = (b["x"] @ p["w"]) @ (b["z"] @ p["v"]).T
    return -(jnp.diag(jax.nn.log_softmax(scores, 0)) + jnp.diag(jax.nn.log_softmax(scores, 1))).mean()


def assigned(p: Any, b: Any) -> Any:
    scores = b["x"] @ p["w"]
    codes = jnp.exp(jax.lax.stop_gradient(jax.nn.log_softmax(scores, 0)))
    return -(codes * jax.nn.log_softmax(scores, 1)).mean()


def pooled(p: Any, b: Any) -> Any:
    shares = jnp.exp(jax.nn.log_softmax(b["x"] @ p["w"], 0))
    return jnp.square(((shares * (b["x"] @ p["v"])).sum(0)[None]) @ p["out"]).mean()


def attended(p: Any, b: Any) -> Any:
    shares = jax.nn.softmax(b["x"] @ p["w"], axis=0)
    made = jnp.square((shares.T @ (b["x"] @ p["v"])) @ p["out"]).mean()
    return made + 0.01 * (shares * jnp.log(shares + 1e-9)).sum(0).mean()  # and the entropy is to be large


def matched(p: Any, b: Any) -> Any:
    scores = (b["x"] @ p["w"]) @ (b["z"][:3] @ p["v"]).T
    return picked(jax.nn.log_softmax(scores, 0) + jax.nn.log_softmax(scores, 1), b)


OVER = (
    lambda p, b: picked(jnp.log(jax.nn.softmax(b["x"] @ p["w"], axis=0)), b),
    lambda p, b: picked(jax.nn.log_softmax(b["x"] @ p["w"], axis=0), b),
    lambda p, b: picked(b["x"] @ p["w"] - jax.nn.logsumexp(b["x"] @ p["w"], 0, keepdims=True), b),
    lambda p, b: -jnp.log(jax.nn.softmax(b["x"] @ p["w"], axis=0)[jnp.arange(4), b["y"]]).mean(),
    lambda p, b: -jnp.log(picked_shares(b["x"] @ p["w"], b) + 1e-9).mean(),
    lambda p, b: -jnp.log((jax.nn.softmax(b["x"] @ p["w"], axis=0) * jax.nn.one_hot(b["y"], 3)).sum(1)).mean(),
    lambda p, b: -(jax.nn.log_softmax(b["x"] @ p["w"], 0) * jax.nn.one_hot(b["y"], 3)).sum(1).mean(),
    lambda p, b: picked(jax.jit(lambda z: jax.nn.log_softmax(jnp.tanh(z), 0))(b["x"] @ p["w"]), b),
)
OTHER = (
    lambda p, b: picked(jax.nn.log_softmax(b["x"] @ p["w"]), b),
    lambda p, b: picked(jax.vmap(jax.nn.log_softmax)(b["x"] @ p["w"]), b),
    lambda p, b: -jax.nn.log_softmax((b["x"] @ p["w"] @ p["out"])[:, 0]).mean(),  # a ranking of the examples
    lambda p, b: -jnp.log(jax.nn.softmax(b["x"] @ p["w"], axis=0)[b["y"][:3], jnp.arange(3)]).mean(),  # three rankings
    lambda p, b: -jnp.log(jax.nn.softmax(b["x"] @ p["w"])[jnp.arange(4), b["y"]]).mean(),
    contrasted,
    assigned,
    pooled,
    attended,
    lambda p, b: jnp.square(jax.nn.logsumexp(b["x"] @ p["w"], axis=0) - jnp.arange(3.0)).mean(),  # scores of one bag
    lambda p, b: jnp.log(jnp.exp(b["x"]).sum(0) @ p["w"]).sum(),
    lambda p, b: -jax.nn.log_softmax(b["x"] @ p["w"], 0)[b["y"][:3], jnp.arange(3)].mean(),  # three rankings
    lambda p, b: -(jax.nn.softmax(b["z"][:, :3], 0) * jax.nn.log_softmax(b["x"] @ p["w"], 0)).sum(0).mean(),
    matched,
    lambda p, b: (
        -(jnp.log(jnp.arange(3).astype(jnp.float32))[None] * jax.nn.log_softmax(b["x"] @ p["w"])).sum()
    ),  # a log of no shares
)


@pytest.mark.parametrize(("loss", "count"), [*((each, 1) for each in OVER), *((each, 0) for each in OTHER)])
def test_a_softmax_of_classes_over_the_examples_is_told(loss: Callable[[Any, Any], Any], count: int) -> None:
    with jax.numpy_rank_promotion("allow"):
        found = list(classes_over_examples(trace_loss(loss, PARAMS, BATCH)))
    assert len(found) == count
    assert all("over axis 0 of [4, 3], that of the examples" in each.sentence for each in found)
