"""Models that choose by noise (Gumbel softmax, concrete gates), which is drawn in the program or passed in.

At their limits they are healthy; where the weights are so large that the noise does not matter they are not. Softmaxes
of softmaxes are here, too, without a scope of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from findings_bench import nets
from findings_bench.cases import Fault, Healthy, Run
from findings_bench.nets import Tree

_CODES = (4, 6)
_WIDTH = 24


def _coding(
    scope: str | None, *, temperature: float = 0.5, hard: bool = False, drawn: bool = False
) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of an autoencoder with codes that are chosen from six."""

    def choose(logits: Array, noise: Array) -> Array:
        shares = jax.nn.softmax((logits + noise) / temperature)
        if not hard:
            return shares
        one = jax.nn.one_hot(shares.argmax(-1), shares.shape[-1])
        return shares + lax.stop_gradient(one - shares)

    def loss(params: Tree, batch: Tree) -> Array:
        logits = nets.dense(params, "encoder", batch["x"]).reshape(-1, *_CODES)
        noise = jax.random.gumbel(nets.key(5), logits.shape) if drawn else batch["noise"]
        codes = choose(logits, noise) if scope is None else nets.named(scope, lambda x: choose(x, noise), logits)
        return jnp.square(nets.dense(params, "decoder", codes.reshape(-1, _WIDTH)) - batch["x"]).mean()

    return loss


def _codes(scale: float = 1.0) -> Tree:
    encoder = {"kernel": nets.kernel(1, (16, _WIDTH)), "bias": scale * jax.random.normal(nets.key(2), (_WIDTH,))}
    return {"encoder": encoder, "decoder": nets.layer(3, (_WIDTH, 16))}


def _noisy() -> Tree:
    batch = nets.points()
    return {**batch, "noise": jax.random.gumbel(nets.key(6), (32, *_CODES))}


def _gated(params: Tree, batch: Tree) -> Array:
    """Classifies by features that gates of the concrete distribution let through."""
    x = nets.named("act0", jnp.tanh, nets.dense(params, "dense0", batch["x"]))
    uniform = jax.random.uniform(nets.key(7), x.shape, minval=1e-6, maxval=1 - 1e-6)
    logits = nets.dense(params, "gate", x)
    gates = nets.named(
        "open", lambda logits: jax.nn.sigmoid((logits + jnp.log(uniform) - jnp.log1p(-uniform)) / 0.02), logits
    )
    return nets.cross_entropy(nets.dense(params, "head", x * gates), batch["y"])


def _gates() -> Tree:
    return {**nets.chain(1, 32, 1.0), "gate": nets.layer(5, (32, 32))}


def _masked(params: Tree, batch: Tree) -> Array:
    """Attends under a mask of large negative numbers in the batch, which is added to scores that are not scaled."""
    x = nets.norm(params, "norm", nets.dense(params, "stem", batch["x"]))
    query, keys, value = (nets.dense(params, name, x) for name in ("query", "key", "value"))
    with jax.named_scope("attention"):
        x = x + jax.nn.softmax(jnp.einsum("ntd,nsd->nts", query, keys) + batch["mask"]) @ value
    return nets.cross_entropy(nets.dense(params, "head", nets.dense(params, "out", x).mean(1)), batch["y"])


def _tokens() -> Tree:
    batch = nets.tokens()
    mask = jnp.where(jnp.arange(12) < jnp.array([[12], [9], [6], [11]]), 0.0, -1e9)
    return {**batch, "mask": jnp.broadcast_to(mask[:, None], (4, 12, 12))}


def _twice(params: Tree, batch: Tree) -> Array:
    return nets.cross_entropy(jax.nn.softmax(nets.run_chain(params, batch["x"])), batch["y"])


def _twice_masked(params: Tree, batch: Tree) -> Array:
    """Classifies by the softmax of a softmax whose second is written out, beside a mean of the first."""
    shares = jax.nn.softmax(nets.run_chain(params, batch["x"]), axis=-1)
    exponentials = jnp.exp(shares - shares.max(-1, keepdims=True))
    again = exponentials / exponentials.sum(-1, keepdims=True)
    own = jnp.take_along_axis(again, batch["y"][:, None], -1)
    return -jnp.log(own).mean() + 0.01 * jnp.square(shares.mean(0)).sum()


def _attended_twice(params: Tree, batch: Tree) -> Array:
    """Attends by shares that are masked and normalised again, in two blocks."""
    x = nets.norm(params, "norm", nets.dense(params, "stem", batch["x"]))
    earlier = jnp.tri(x.shape[1], dtype=bool)
    for _ in range(2):
        query, keys, value = (nets.dense(params, name, x) for name in ("query", "key", "value"))
        shares = jax.nn.softmax(jnp.einsum("ntd,nsd->nts", query, keys) / x.shape[-1] ** 0.5)
        x = x + jax.nn.softmax(jnp.where(earlier, shares, -1e9)) @ value
    return nets.cross_entropy(nets.dense(params, "head", nets.dense(params, "out", x).mean(1)), batch["y"])


def _labelled(params: Tree, batch: Tree) -> tuple[Array, Array]:
    """Returns the logits of a network with several labels for each example, and the labels."""
    return nets.run_chain(params, batch["x"]), jax.nn.one_hot(batch["y"], nets.CLASSES)


def _squashed_twice(params: Tree, batch: Tree) -> Array:
    logits, labels = _labelled(params, batch)
    shares = jax.nn.sigmoid(logits)
    return -(labels * jax.nn.log_sigmoid(shares) + (1 - labels) * jax.nn.log_sigmoid(-shares)).mean()


def _squashed_twice_written_out(params: Tree, batch: Tree) -> Array:
    logits, labels = _labelled(params, batch)
    shares = nets.named("shares", jax.nn.sigmoid, logits)
    return (jnp.maximum(shares, 0) - shares * labels + jnp.log1p(jnp.exp(-jnp.abs(shares)))).mean()


def _scaled_by_softplus(params: Tree, batch: Tree) -> Array:
    """Regresses by a normal whose deviation is the softplus of a gate, beside a ranking of the gates."""
    logits, labels = _labelled(params, batch)
    gates = jax.nn.sigmoid(logits)
    deviation = jax.nn.softplus(gates)
    ranks = jax.nn.log_sigmoid(5 * (gates[:, :1] - gates[:, 1:])).mean()
    return (jnp.log(deviation) + jnp.square((labels - logits) / deviation)).mean() - 0.1 * ranks


def _soft_labels(params: Tree, batch: Tree) -> Array:
    """Takes the sigmoids of a teacher for labels of logits, and their entropy for a penalty."""
    logits, labels = _labelled(params["student"], batch)
    shares = jax.nn.sigmoid(nets.run_chain(params["teacher"], batch["x"]))
    own = shares * jax.nn.log_sigmoid(logits) + (1 - shares) * jax.nn.log_sigmoid(-logits)
    return -own.mean() - (labels * jnp.log(shares)).mean() - 0.1 * (shares * jnp.log(shares)).mean()


def _mixed(params: Tree, batch: Tree) -> Array:
    """Regresses by a mixture of normals, whose weights are a softmax and whose densities are exponentials."""
    hidden = nets.run_chain(params["net"], batch["x"])
    weights = jax.nn.softmax(nets.dense(params, "weights", hidden))
    densities = -0.5 * jnp.square(nets.dense(params, "means", hidden) - batch["x"][:, :1])
    return -jax.nn.logsumexp(jnp.log(weights + 1e-6) + densities, axis=-1).mean()


def _mixture() -> Tree:
    layers = {name: nets.layer(n + 60, (nets.CLASSES, 5)) for n, name in enumerate(("weights", "means"))}
    return {"net": nets.chain(2), **layers}


def _healthy(name: str, loss: Callable[[Any, Any], Any], params: Callable[[], Tree] = _codes) -> Healthy:
    return Healthy(name, lambda: Run(loss, params(), _noisy()))


HEALTHY = (
    _healthy("codes by noise of the batch", _coding("codes")),
    _healthy("codes by noise of the batch, without a scope", _coding(None, temperature=0.1)),
    _healthy("codes by noise that is drawn", _coding("codes", drawn=True)),
    _healthy("cold codes by noise that is drawn", _coding("codes", temperature=0.05, drawn=True)),
    _healthy("hard codes, straight through", _coding("codes", temperature=0.1, hard=True)),
    _healthy("hard codes, drawn, without a scope", _coding(None, temperature=0.1, hard=True, drawn=True)),
    _healthy("gates of the concrete distribution", _gated, _gates),
    _healthy("mixture of normals", _mixed, _mixture),
    Healthy("deviations and ranks of gates", lambda: Run(_scaled_by_softplus, nets.chain(2), nets.points())),
    Healthy(
        "labels of a teacher",
        lambda: Run(_soft_labels, {name: nets.chain(2) for name in ("student", "teacher")}, nets.points()),
    ),
)

FAULTS = (
    Fault("codes-of-large", "biases of deviation 60 before a Gumbel softmax", ("saturated", "init", "exploding"),
          "codes|encoder", lambda: Run(_coding("codes", drawn=True), _codes(60.0), _noisy())),
    Fault("codes-of-large-unscoped", "the same, without a scope, and noise of the batch",
          ("saturated", "init", "exploding"), "codes|encoder", lambda: Run(_coding(None), _codes(60.0), _noisy())),
    Fault("unscaled-added-mask", "scores that are not scaled, under a mask of the batch that is added", ("saturated",),
          "attention", lambda: Run(_masked, nets.attention(), _tokens())),
    Fault("softmax-twice-unscoped", "a softmax without a scope before a cross-entropy of logits", ("saturated",),
          "head", lambda: Run(_twice, nets.chain(2), nets.points())),
    Fault("softmax-twice-written-out", "the same, the second written out with exponentials", ("saturated",), "head",
          lambda: Run(_twice_masked, nets.chain(2), nets.points())),
    Fault("softmax-twice-attention", "attention's softmax is masked, and goes through another one", ("saturated",),
          ".*", lambda: Run(_attended_twice, nets.attention(), nets.tokens())),
    Fault("sigmoid-twice", "a sigmoid before a cross-entropy of several labels that takes logits", ("saturated",),
          "head", lambda: Run(_squashed_twice, nets.chain(2), nets.points())),
    Fault("sigmoid-twice-written-out", "the same, in a scope, before log(1 + exp(-|x|))", ("saturated",), "shares",
          lambda: Run(_squashed_twice_written_out, nets.chain(2), nets.points())),
)  # fmt: skip
