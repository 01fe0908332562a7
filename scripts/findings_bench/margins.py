"""Models whose loss is a margin that every example keeps, which are healthy, and networks that are dead before one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from findings_bench import nets
from findings_bench.cases import Fault, Healthy, Run
from findings_bench.nets import Tree


def _embedded(params: Tree, x: Array) -> Array:
    return nets.run_chain(params, x)


def _distances(params: Tree, batch: Tree) -> tuple[Array, Array]:
    anchor, positive, negative = (_embedded(params, batch[name]) for name in ("x", "positive", "negative"))
    return jnp.square(anchor - positive).sum(-1), jnp.square(anchor - negative).sum(-1)


def _triplets(margin: float) -> Callable[[Tree, Tree], Array]:
    def loss(params: Tree, batch: Tree) -> Array:
        near, far = _distances(params, batch)
        with jax.named_scope("triplet"):
            return jax.nn.relu(near - far + margin).mean()

    return loss


def _pairs(params: Tree, batch: Tree) -> Array:
    """Pushes pairs of different labels apart, by the square of what is missing to a distance."""
    _, far = _distances(params, batch)
    with jax.named_scope("contrast"):
        return jnp.square(jnp.maximum(0.01 - jnp.sqrt(far + 1e-6), 0)).mean()


def _classes(params: Tree, batch: Tree) -> Array:
    """Classifies by a margin between the scores of classes (Crammer and Singer)."""
    scores = _embedded(params, batch["clear"])
    own = jnp.take_along_axis(scores, batch["y"][:, None], -1)
    margins = nets.named("hinge", jax.nn.relu, 1.0 + scores - own)
    return (margins * (1 - jax.nn.one_hot(batch["y"], scores.shape[-1]))).sum(-1).mean()


def _beside(params: Tree, batch: Tree) -> Array:
    """Classifies, and keeps what a projection makes of the logits closer than a bound."""
    logits = _embedded(params["net"], batch["x"])
    with jax.named_scope("projection"):
        size = jnp.linalg.norm(logits @ params["projection"]["kernel"], axis=-1)
    return nets.cross_entropy(logits, batch["y"]) + 0.1 * jax.nn.relu(size - 100.0).mean()


def _free_bits(params: Tree, batch: Tree) -> Array:
    """Encodes by shares that may differ from a prior's by one nat without a loss."""
    shares, prior = (jax.nn.log_softmax(nets.dense(params, name, batch["x"])) for name in ("encoder", "prior"))
    rebuilt = nets.dense(params, "decoder", jnp.exp(shares))
    divergence = (jnp.exp(shares) * (shares - prior)).sum(-1)
    return jnp.square(rebuilt - batch["x"]).mean() + jnp.maximum(divergence, 1.0).mean()


def _coding() -> Tree:
    encoders = {name: nets.layer(n, (16, 32), 0.3) for n, name in enumerate(("encoder", "prior"))}
    return {**encoders, "decoder": nets.layer(3, (32, 16))}


def _batch() -> Tree:
    batch = nets.points()
    clear = jax.nn.one_hot(batch["y"], 16) * 5 + 0.1 * batch["x"]
    near = batch["x"] + 0.01 * jax.random.normal(nets.key(8), batch["x"].shape)
    return {**batch, "positive": near, "negative": -batch["x"], "clear": clear}


def _separating() -> Tree:
    """Returns parameters that copy the first features, of which the label's is the largest by far."""
    head = {"kernel": jnp.eye(32, nets.CLASSES), "bias": jnp.zeros(nets.CLASSES)}
    return {"dense0": {"kernel": jnp.eye(16, 32), "bias": jnp.zeros(32)}, "head": head}


def _dead() -> Tree:
    params = nets.chain(3)
    return {**params, "dense1": {**params["dense1"], "bias": jnp.full(32, -50.0)}}


def _healthy(name: str, loss: Callable[[Any, Any], Any], params: Callable[[], Tree]) -> Healthy:
    return Healthy(name, lambda: Run(loss, params(), _batch()))


HEALTHY = (
    _healthy("triplets whose margin is kept", _triplets(0.01), lambda: nets.chain(2)),
    _healthy("pairs that are apart", _pairs, lambda: nets.chain(2)),
    _healthy("a divergence whose bits are free", _free_bits, _coding),
    _healthy("classes apart by a margin", _classes, _separating),
    _healthy("a bound that is kept, beside a loss", _beside,
             lambda: {"net": nets.chain(2), "projection": {"kernel": nets.kernel(50, (nets.CLASSES, 8))}}),
)  # fmt: skip

FAULTS = (
    Fault("dead-before-margin", "biases of -50 before the second ReLU of embeddings in a triplet loss", ("dead",),
          "act1", lambda: Run(_triplets(1.0), _dead(), _batch())),
)  # fmt: skip
