"""Gradients that are zero but for rounding: models with an invariance, and models whose gradients are merely small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.dump.manifest.manifest import Cause
from tests.support.data import drawn, filled
from tests.support.sampled import sampled

BATCH = drawn(0, 4, 8, 16)


def normal(seed: int, *shape: int) -> Any:
    return drawn(seed, *shape, scale=0.3)


def add(x: Any, bias: Any) -> Any:
    return x + jnp.broadcast_to(bias, x.shape)


def attention(w: Any, x: Any, masked: float = 0.0) -> Any:
    query, key = add(x @ w["query"], w["query_bias"]), add(x @ w["key"], w["key_bias"])
    scores = jnp.einsum("bqd,bkd->bqk", query, key) / 4.0
    if masked:
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool)[None], scores, masked)
    return jax.nn.softmax(scores) @ (x @ w["value"])


def normalised(y: Any, axes: Any, eps: float) -> Any:
    return (y - y.mean(axes, keepdims=True)) * lax.rsqrt(y.var(axes, keepdims=True) + eps)


ATTENTION = {
    "query": normal(1, 16, 16), "key": normal(2, 16, 16), "value": normal(3, 16, 16), "query_bias": filled(0.0, 16),
    "key_bias": filled(0.0, 16),
}  # fmt: skip


def attends(w: Any, x: Any) -> Any:
    return (jnp.tanh(attention(w, x)) ** 2).mean()


def attends_before(masked: float) -> Callable[[Any, Any], Any]:
    """Attention to what is before, and a softmax behind that would take out what is added for all positions."""
    return lambda w, x: -jax.nn.log_softmax(attention(w, x, masked), axis=1)[..., 0].mean()


def attends_in_half(dtype: Any) -> Callable[[Any, Any], Any]:
    return lambda w, x: attends(jax.tree.map(lambda a: a.astype(dtype), w), x.astype(dtype)).astype(jnp.float32)


def attends_in_a_scan(w: Any, x: Any) -> Any:
    layers = jax.tree.map(lambda a: jnp.stack([a] * 3), w)
    return (lax.scan(jax.checkpoint(lambda h, layer: (h + attention(layer, h), None)), x, layers)[0] ** 2).mean()


def batch_normalised(w: Any, x: Any) -> Any:
    y = normalised(add(x @ w["dense"], w["bias"]), (0, 1), 1e-5)
    return (jnp.tanh(add(y * jnp.broadcast_to(w["scale"], y.shape), w["shift"])) * x).mean()


def layer_normalised_over_two(w: Any, x: Any) -> Any:
    with jax.named_scope("hidden"):
        h = jnp.tanh(x @ w["hidden"])
    y = normalised(add(h @ w["dense"], w["bias"]), -1, 1e-12)
    with jax.named_scope("output"):
        y = jnp.tanh(y * jnp.broadcast_to(w["scale"], y.shape))
    return (y * x[..., :2]).mean()


def shifted_logits(w: Any, x: Any) -> Any:
    logits = x @ w["dense"] + w["shift"]
    return -jax.nn.log_softmax(logits)[..., 0].mean()


def all_classes(w: Any, x: Any) -> Any:
    shares = jax.nn.softmax(jnp.tanh(x @ w["hidden"]) @ w["dense"])
    return -jnp.log(shares.sum(-1) + 1.0).mean()


def centred(w: Any, x: Any) -> Any:
    y = x * w["scale"] + w["shift"]
    return ((y - y.mean()) ** 2).mean()


INVARIANT: Mapping[str, tuple[Callable[[Any, Any], Any], Any, set[str], str]] = {
    "a key's bias": (attends, ATTENTION, {"key_bias"}, "softmax"),
    "a key's bias in bfloat16": (attends_in_half(jnp.bfloat16), ATTENTION, {"key_bias"}, "softmax"),
    "a key's bias in float16": (attends_in_half(jnp.float16), ATTENTION, {"key_bias"}, "softmax"),
    "a key's bias under a causal mask": (attends_before(-1e9), ATTENTION, {"key_bias"}, "softmax"),
    "a key's bias under the smallest number": (
        attends_before(float(jnp.finfo(jnp.float32).min)), ATTENTION, {"key_bias"}, "softmax"
    ),
    "a key's bias in a scan": (attends_in_a_scan, ATTENTION, {"key_bias"}, "softmax"),
    "a bias before a batch normalisation": (
        batch_normalised,
        {"dense": normal(4, 16, 16), "bias": filled(0.0, 16), "scale": filled(1.0, 16), "shift": filled(0.0, 16)},
        {"bias"}, "sub",
    ),
    "everything before a normalisation of two": (
        layer_normalised_over_two,
        {"hidden": normal(5, 16, 16), "dense": normal(6, 16, 2), "bias": filled(0.0, 2), "scale": filled(1.0, 2)},
        {"hidden", "dense", "bias"}, "mul",
    ),
    "a shift of all logits": (
        shifted_logits, {"dense": normal(7, 16, 5), "shift": filled(0.0)}, {"shift"}, "log_softmax"
    ),
    "everything before the sum of all shares": (
        all_classes, {"hidden": normal(5, 16, 16), "dense": normal(6, 16, 4)}, {"hidden", "dense"}, "reduce_sum"
    ),
    "a shift before a mean is subtracted": (centred, {"scale": filled(1.0), "shift": filled(1.0)}, {"shift"}, "sub"),
}  # fmt: skip


def deep_sigmoids(w: Any, x: Any) -> Any:
    for layer in range(14):
        x = jax.nn.sigmoid(x @ w[f"w{layer}"])
    return (x**2).mean()


def nearly_cut_off(w: Any, x: Any) -> Any:
    return (x @ w["head"]).sum() + 1e-7 * jnp.tanh(x @ w["branch"]).sum()


def at_the_optimum(w: Any, x: Any) -> Any:
    return ((w["mean"] - x) ** 2).mean() + (x * w["scale"]).sum()


def saturated(w: Any, x: Any) -> Any:
    return (jax.nn.sigmoid(w["gate"] * 16.0) * x).sum() + (x * w["scale"]).sum()


def small_logits(w: Any, x: Any) -> Any:
    for layer in range(6):  # the logarithm of the number of classes is so much larger that its rounding hides them
        x = jnp.tanh(x @ w[f"w{layer}"])
    return -jax.nn.log_softmax(add(x @ w["head"], w["bias"]))[..., 0].mean()


SMALL: Mapping[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "a deep stack of sigmoids": (deep_sigmoids, {f"w{layer}": normal(layer, 16, 16) for layer in range(14)}),
    "a branch of little weight": (nearly_cut_off, {"head": normal(1, 16, 4), "branch": normal(2, 16, 4)}),
    "an optimum": (at_the_optimum, {"mean": BATCH.mean(), "scale": filled(1.0)}),
    "logits far below what a log of a softmax returns": (
        small_logits,
        {f"w{n}": normal(n, 16, 16) * 0.05 for n in range(6)} | {"head": normal(7, 16, 5), "bias": filled(0.0, 5)},
    ),
    "a saturated gate": (saturated, {"gate": filled(1.0), "scale": filled(1.0)}),
}


def causes(captured: gs.Dump) -> list[Cause]:
    return [cause for cause in captured.causes if "does not change with it" in cause.why]


@pytest.mark.slow
@sampled("model", INVARIANT)
def test_an_invariance_is_found_with_what_takes_the_value_out(model: str) -> None:
    loss, weights, names, taken_out_by = INVARIANT[model]
    captured = gs.capture(loss, weights, BATCH)
    found = causes(captured)
    assert {cause.name for cause in found if cause.family == "param_grad"} == names, found
    assert all(f"{taken_out_by} at test_invariance.py:" in cause.why for cause in found)
    # That a loss is changed by no parameter at all is a finding.
    nothing_learned = [each for each in captured.findings() if each.rule == "zero-grad"]
    assert len(nothing_learned) == (names == weights.keys()), nothing_learned
    for each in nothing_learned:
        assert f"{taken_out_by} at " in each.why
        assert each.why.endswith("nothing is learned")


@sampled("model", INVARIANT)
def test_the_loss_does_not_change_with_what_is_called_invariant(model: str) -> None:
    loss, weights, names, _ = INVARIANT[model]
    eps = (
        2e-2 if "float16" in model else 1e-5
    )  # of a normalisation of two, a displacement that is not small flips signs
    moved = {name: leaf + 1e-3 if name in names else leaf for name, leaf in weights.items()}
    np.testing.assert_allclose(loss(moved, BATCH), loss(weights, BATCH), rtol=eps)


@pytest.mark.slow
@sampled("model", SMALL)
def test_a_gradient_that_is_merely_small_is_not_called_invariant(model: str) -> None:
    loss, weights = SMALL[model]
    assert causes(gs.capture(loss, weights, BATCH)) == []


@pytest.mark.slow
def test_a_value_on_the_way_is_said_to_be_invariant_too() -> None:
    loss, weights, _, _ = INVARIANT["everything before a normalisation of two"]
    found = causes(gs.capture(loss, weights, BATCH))
    assert ("activation_grad", "hidden", True) in {(c.family, c.name, c.rounding) for c in found}


@pytest.mark.slow
def test_a_gradient_that_cancels_exactly_is_zero_by_construction() -> None:
    def loss(w: Any, x: Any) -> Any:
        return ((w["shift"] + jnp.arange(4.0) - (w["shift"] + jnp.arange(4.0)).mean()) ** 2).sum() + w[
            "scale"
        ] * x.sum()

    (cause,) = causes(gs.capture(loss, {"shift": filled(1.0), "scale": filled(1.0)}, BATCH))
    assert (cause.name, cause.rounding) == ("shift", False)
    assert cause.why.startswith("zero by construction: the loss does not change with it; sub at")


def test_a_gradient_that_cancels_while_no_margin_of_a_hinge_is_kept_is_not_zero_by_construction() -> None:
    def loss(w: Any, x: Any) -> Any:
        real, fake = (add((each @ w["score"])[..., 0], w["bias"]) for each in (x, 0.3 - x))
        return jax.nn.relu(1 - real).mean() + jax.nn.relu(1 + fake).mean()

    captured = gs.capture(loss, {"score": 0.1 * normal(1, 16, 1), "bias": filled(0.0)}, BATCH)
    (cause,) = captured.causes
    assert (cause.name, cause.why.partition(":")[0]) == ("bias", "cancellation")


def test_a_model_without_small_gradients_runs_once() -> None:
    runs: list[int] = []

    def loss(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return (x @ w["head"]).sum()

    assert gs.capture(loss, {"head": normal(1, 16, 4)}, BATCH).causes == ()
    jax.effects_barrier()
    assert len(runs) == 1
