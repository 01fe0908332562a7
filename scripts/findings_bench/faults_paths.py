"""Faults of paths: gradients that are cut, parameters without use, masks, NaNs and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from findings_bench import nets
from findings_bench.cases import Fault, Run
from findings_bench.nets import Tree


def _between(
    function: Callable[[Any], Any], name: str = "between", activation: Callable[[Any], Any] = jax.nn.relu
) -> Run:
    """Returns a chain with a function between act1 and dense2."""

    def loss(params: Tree, batch: Tree) -> Any:
        x = batch["x"]
        for n in range(4):
            x = nets.named(f"act{n}", activation, nets.dense(params, f"dense{n}", x))
            if n == 1:
                x = nets.named(name, function, x)
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return Run(loss, nets.chain(4), nets.points())


def _branches(cut: Callable[[Any], Any]) -> Run:
    params = {**nets.chain(2), "side0": nets.layer(60, (16, 32)), "side1": nets.layer(61, (32, 32))}

    def loss(params: Tree, batch: Tree) -> Any:
        side = nets.dense(params, "side1", nets.named("sideact", jax.nn.relu, nets.dense(params, "side0", batch["x"])))
        x = nets.named("act0", jax.nn.relu, nets.dense(params, "dense0", batch["x"]))
        x = nets.named("act1", jax.nn.relu, nets.dense(params, "dense1", x))
        with jax.named_scope("join"):
            x = x + cut(side)
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return Run(loss, params, nets.points())


def _unused(called: bool) -> Run:
    params = {**nets.chain(2), "extra": nets.layer(60, (16, 32))}

    def loss(params: Tree, batch: Tree) -> Any:
        if called:
            nets.dense(params, "extra", batch["x"])
        return nets.chain_loss()({name: each for name, each in params.items() if name != "extra"}, batch)

    return Run(loss, params, nets.points())


def _masked_loss(divide: bool) -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        logits = nets.run_chain(params, batch["x"])
        with jax.named_scope("loss"):
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=-1)[:, 0]
            total = -(picked * batch["mask"]).sum()
            return total / batch["mask"].sum() if divide else total / 32

    return Run(loss, nets.chain(3), {**nets.points(), "mask": jnp.zeros(32)})


def _masked_features() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.named("act0", jax.nn.relu, nets.dense(params, "dense0", batch["x"]))
        x = nets.named("act1", jax.nn.relu, nets.dense(params, "dense1", x)) * batch["mask"]
        x = nets.named("act2", jax.nn.relu, nets.dense(params, "dense2", x))
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return Run(loss, nets.chain(3), {**nets.points(), "mask": jnp.zeros((32, 1))})


def _masked_bare() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        x = nets.named("layer0", lambda x: jax.nn.relu(x @ params["one"]), batch["x"])
        x = x * batch["mask"]
        x = nets.named("layer1", lambda x: jax.nn.relu(x @ params["two"]), x)
        return nets.cross_entropy(x @ params["head"], batch["y"])

    params = {"one": nets.kernel(1, (16, 32)), "two": nets.kernel(2, (32, 32)), "head": nets.kernel(3, (32, 4))}
    return Run(loss, params, {**nets.points(), "mask": jnp.zeros(32)})


def _labels(labels: Any) -> Run:
    return Run(nets.chain_loss(), nets.chain(2), {**nets.points(), "y": labels})


def _shifted(cross_entropy: Callable[[Any, Any], Any]) -> Run:
    """Returns a chain whose labels are one too large, with another cross-entropy of log-probabilities and labels."""

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(jax.nn.log_softmax(nets.run_chain(params, batch["x"])), batch["y"]).mean()

    batch = nets.points()
    return Run(loss, nets.chain(2), {**batch, "y": batch["y"] + 1})


def _spoiled(value: float) -> Run:
    batch = nets.points()
    return Run(nets.chain_loss(), nets.chain(2), {**batch, "x": batch["x"].at[3, 2].set(value)})


def _norm_without_epsilon() -> Run:
    def normalise(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True))

    run = _between(normalise, "normalise")
    return Run(run.loss, run.variables, {**run.batch, "x": run.batch["x"].at[0].set(0.0)})


def _exp_loss() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        logits = 200 * nets.run_chain(params, batch["x"])
        with jax.named_scope("loss"):
            probabilities = jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)
            return -jnp.log(jnp.take_along_axis(probabilities, batch["y"][:, None], axis=-1)).mean()

    return Run(loss, nets.chain(2), nets.points())


def _root_of_distance(x: Any) -> Any:
    return jnp.sqrt(x - x.min(-1, keepdims=True))


def _distance() -> Run:
    def loss(params: Tree, batch: Tree) -> Any:
        one, other = (nets.run_chain(params, each) for each in (batch["x"], batch["x"]))
        with jax.named_scope("distance"):
            return jnp.linalg.norm(one - other, axis=-1).mean()

    return Run(loss, nets.chain(2), {"x": nets.points()["x"]})


def _regression(error: Callable[[Any, Tree], Any]) -> Run:
    """Returns the regression of a number to a column of predictions."""

    def loss(params: Tree, batch: Tree) -> Any:
        predictions = nets.run_chain(params, batch["x"])
        with jax.named_scope("loss"):
            return jnp.square(error(predictions, batch)).mean()

    points = nets.points()
    row = points["x"][:, 0] * points["x"][:, 1]
    batch = {"x": points["x"], "row": row, "column": row[:, None], "kept": 0.5 * points["y"]}
    return Run(loss, {**nets.chain(2), "head": nets.layer(99, (32, 1))}, batch)


def _vocabulary(rows: int = 40, positions: int = 12) -> Run:
    """Returns the classification of texts of 12 of 40 words, with an embedding of some words and positions."""
    words = jax.random.randint(nets.key(3), (8, 12), 0, 40)
    embedding = nets.layer(98, (rows, 16))["kernel"]

    def loss(params: Tree, batch: Tree) -> Any:
        with jax.named_scope("embed"):
            x = (params["embedding"][batch["words"]] + params["positions"][jnp.arange(12)]).mean(1)
        return nets.cross_entropy(nets.run_chain(params, x), batch["y"])

    tables = {"embedding": embedding, "positions": nets.layer(97, (positions, 16))["kernel"]}
    return Run(loss, {**nets.chain(2), **tables}, {"words": words, "y": words[:, 0] % nets.CLASSES})


def _all_classes(params: Tree, batch: Tree) -> Any:
    """Returns the likelihood of any class, where that of the label was meant."""
    return -jnp.log(jax.nn.softmax(nets.run_chain(params, batch["x"])).sum(-1)).mean()


def _diagonal(instead: float) -> Callable[[Any], Any]:
    return lambda scores: jnp.where(jnp.eye(scores.shape[-1], dtype=bool), scores, instead)


def _fault(name: str, planted: str, rules: str, layers: str, run: Callable[[], Run]) -> Fault:
    return Fault(name, planted, tuple(rules.split("|")), layers, run)


_CUT = "between|act1|dense1"

FAULTS = (
    _fault("stop-gradient", "stop_gradient after act1", "zero-grad", _CUT, lambda: _between(lax.stop_gradient)),
    _fault("stop-branch", "a branch of two layers behind stop_gradient", "zero-grad", "side1|join",
           lambda: _branches(lax.stop_gradient)),
    _fault("integer-cast", "act1 is cast to int32 and back", "zero-grad", _CUT,
           lambda: _between(lambda x: x.astype(jnp.int32).astype(x.dtype))),
    _fault("argmax", "act1 is replaced by its one-hot argmax", "zero-grad", _CUT,
           lambda: _between(lambda x: jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1]))),
    _fault("rounding", "act1 is rounded without a straight-through gradient", "zero-grad", _CUT,
           lambda: _between(jnp.round)),
    _fault("quantised", "kernels of 4 bits without a straight-through gradient", "zero-grad", r"dense\d",
           lambda: Run(nets.chain_loss_of(nets.quantised), nets.chain(4), nets.points())),
    _fault("quantised-between", "act1 is quantised by its largest magnitude, likewise", "zero-grad", _CUT,
           lambda: _between(nets.quantised)),
    _fault("branch-times-zero", "a branch is multiplied by zero", "zero-grad", "side1|join",
           lambda: _branches(lambda side: side * 0.0)),
    _fault("unused-parameter", "the parameters of a layer that is not called", "unused-param", "extra",
           lambda: _unused(False)),
    _fault("unused-output", "a layer is called and its output forgotten", "unused-param", "extra",
           lambda: _unused(True)),
    _fault("all-classes", "the loss sums the probabilities of all classes", "zero-grad", "head",
           lambda: Run(_all_classes, nets.chain(2), nets.points())),
    _fault("mask-all", "the loss's mask is zero everywhere", "zero-grad", "head|loss", lambda: _masked_loss(False)),
    _fault("mask-features", "a mask of the batch between act1 and dense2 is zero everywhere", "zero-grad", "mask",
           _masked_features),
    _fault("mask-features-bare", "the same between act1 and act2, without biases", "zero-grad", "mask",
           _masked_bare),
    _fault("mask-mean", "a mean over a mask that is zero everywhere", "nonfinite", "loss", lambda: _masked_loss(True)),
    _fault("mask-attention", "a row of attention is masked throughout by -inf", "nonfinite", "softmax|scores",
           lambda: Run(nets.attention_loss(mask=lambda scores: scores.at[0, 0].set(-jnp.inf)),
                       nets.attention(), nets.tokens())),
    _fault("mask-diagonal", "a mask by -1e9 leaves each position itself alone", "zero-grad", "softmax|scores",
           lambda: Run(nets.attention_loss(mask=_diagonal(-1e9)), nets.attention(), nets.tokens())),
    _fault("mask-diagonal-inf", "a mask by -inf leaves each position itself alone", "zero-grad", "softmax|scores",
           lambda: Run(nets.attention_loss(mask=_diagonal(-float("inf"))), nets.attention(), nets.tokens())),
    _fault("label-row", "a row of labels meets a column of predictions", "broadcast", "row",
           lambda: _regression(lambda predictions, batch: predictions - batch["row"])),
    _fault("label-column", "a column of labels meets a row of predictions", "broadcast", "column",
           lambda: _regression(lambda predictions, batch: predictions[:, 0] - batch["column"])),
    _fault("weights-row", "a row of weights meets a column of errors", "broadcast", "kept",
           lambda: _regression(lambda predictions, batch: batch["kept"] * (predictions - batch["column"]))),
    _fault("vocabulary", "words beyond the rows of the embedding", "out-of-bounds", "words|embed",
           lambda: _vocabulary(36)),
    _fault("positions", "texts are longer than the table of positions", "out-of-bounds", "positions",
           lambda: _vocabulary(positions=10)),
    _fault("label-shift", "labels start at 1", "nonfinite", "loss", lambda: _labels(nets.points()["y"] + 1)),
    _fault("label-shift-index", "labels start at 1, and an index clips them", "out-of-bounds", "y",
           lambda: _shifted(lambda z, y: -z[jnp.arange(len(y)), y])),
    _fault("label-shift-one-hot", "labels start at 1, and one_hot has no class for the last", "out-of-bounds", "y",
           lambda: _shifted(lambda z, y: -(jax.nn.one_hot(y, z.shape[1]) * z).sum(1))),
    _fault("input-inf", "an input is infinite", "nonfinite", "x", lambda: _spoiled(float("inf"))),
    _fault("input-nan", "an input is NaN", "nonfinite", "x", lambda: _spoiled(float("nan"))),
    _fault("log-zero", "the log of a ReLU", "nonfinite", "between", lambda: _between(jnp.log)),
    _fault("sqrt-zero", "the square root of the distance to the smallest feature", "nonfinite", "between",
           lambda: _between(_root_of_distance, activation=jnp.tanh)),
    _fault("where-once", "where around a log of zeros", "nonfinite", "between",
           lambda: _between(lambda x: jnp.where(x > x.min(), jnp.log(x - x.min()), 0.0), activation=jnp.tanh)),
    _fault("norm-without-epsilon", "a normalisation without epsilon, of equal features", "nonfinite",
           "normalise", _norm_without_epsilon),
    _fault("exp-overflow", "a softmax without the largest subtracted", "nonfinite", "loss", _exp_loss),
    _fault("distance-zero", "the norm of a difference that is zero", "nonfinite", "distance", _distance),
)  # fmt: skip
