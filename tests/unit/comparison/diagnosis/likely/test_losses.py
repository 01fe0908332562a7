"""Losses that differ are told with both values, and their reduction as the cause where it explains all gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(2).normal
KERNELS = [_draw(size=size).astype(np.float32) for size in ((4, 6), (6, 2))]
INPUTS = _draw(size=(5, 4)).astype(np.float32)


@cache
def _program(
    *names: str, reduce: Any = jnp.mean, slope: float = 1.0, scope: str = "", stats_only: bool = False
) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in names:
            with jax.named_scope(name):
                x = jnp.tanh(slope * (x @ weights[name]["w"]))
        if not scope:
            return reduce(jnp.square(x).sum(-1))
        with jax.named_scope(scope):
            return reduce(jnp.square(x).sum(-1))

    own = {name: {"w": w} for name, w in zip(names, KERNELS, strict=True)}
    return gs.capture(loss, own, {"x": INPUTS}, origins=False, stats_only=stats_only)


REFERENCE = ("first", "second")


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["", "objective"], ids=["outside scopes", "in a scope"])
def test_another_reduction_is_reported_first_with_its_factor(scope: str) -> None:
    reference = _program(*REFERENCE, scope=scope)
    found = gs.compare(reference, _program("Dense_0", "Dense_1", reduce=jnp.sum, scope=scope))
    assert found.verdict == "different"
    assert found.losses is not None
    assert found.losses.ref == reference.manifest.loss
    assert found.losses.factor == pytest.approx(5, rel=1e-5)
    assert found.sentence.startswith(
        "The loss is reduced otherwise: it is 5 times the reference's "
        f"({found.losses.ref:.6g} and {found.losses.cand:.6g}), and so is every gradient, "
        "as a sum over 5 examples is of their mean. "
    )
    assert found.to_json()["losses"] == {
        "ref": found.losses.ref, "cand": found.losses.cand, "factor": found.losses.factor,
    }  # fmt: skip
    back = gs.compare(_program(*REFERENCE, reduce=jnp.sum, scope=scope), _program("Dense_0", "Dense_1", scope=scope))
    assert "it is 0.2 times the reference's" in back.sentence
    assert "as a mean over 5 examples is of their sum. " in back.sentence


@pytest.mark.slow
def test_a_loss_that_follows_from_another_value_is_reported_behind_it() -> None:
    found = gs.compare(_program(*REFERENCE), _program(*REFERENCE, slope=1.1))
    assert found.losses is not None
    assert not found.losses.explains
    assert found.sentence.startswith("Forward first differs at `first`")
    assert f"; the losses are {found.losses.ref:.6g} and {found.losses.cand:.6g}" in found.sentence


def test_a_gradient_that_is_no_multiple_is_not_explained_by_the_loss() -> None:
    def half(x: Any) -> Any:
        return 5 * jax.lax.stop_gradient(x[:2]).mean() + 2 * x[2:].mean()

    found = gs.compare(_program(*REFERENCE), _program(*REFERENCE, reduce=half))
    assert found.losses is not None
    assert not found.losses.explains
    assert found.sentence.startswith(f"Forward first differs at the loss ({found.losses.values}). Backward first"), (
        found.sentence
    )


@pytest.mark.slow
def test_what_one_program_has_alone_before_a_loss_that_differs_is_told() -> None:
    def program(*names: str, last: Any) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names[0]):
                x = batch["x"] @ weights["w"]
            for name in names[1:]:
                with jax.named_scope(name):
                    x = last(x)
            return jnp.square(last(x) if not names[1:] else x).mean()

        return gs.capture(loss, {"w": KERNELS[0]}, {"x": INPUTS}, origins=False)

    found = gs.compare(program("dense", "squash", last=jnp.tanh), program("Dense_0", last=jax.nn.sigmoid))
    assert found.losses is not None
    assert found.sentence.startswith(
        f"Forward differs at the loss ({found.losses.values}), and before it `squash` is only in the reference. "
        "Backward first differs at `squash`"
    ), found.sentence


@pytest.mark.slow
def test_losses_that_differ_are_reported_where_all_tensors_agree() -> None:
    found = gs.compare(_program(*REFERENCE), _program(*REFERENCE, reduce=lambda x: x.mean() + 1))
    assert found.verdict == "same"
    assert found.losses is not None
    assert f"; but the losses are {found.losses.ref:.6g} and {found.losses.cand:.6g}" in found.sentence


@pytest.mark.slow
def test_losses_are_compared_with_the_tolerance_that_is_requested() -> None:
    reference, other = (_program(*REFERENCE, slope=slope) for slope in (1.0, 1.0 + 1e-6))
    assert gs.compare(reference, other).losses is None
    assert gs.compare(reference, other, tol=1e-9).losses is not None
    assert gs.compare(reference, other, tol=0).losses is not None
    assert gs.compare(reference, other, bitwise=True).losses is not None
    assert "losses" not in gs.compare(reference, other).to_json()


@pytest.mark.slow
def test_an_infinite_loss_differs_from_every_other() -> None:
    def infinite(x: Any) -> Any:
        return x.mean() + jnp.inf

    reference, candidate = _program(*REFERENCE, reduce=infinite), _program("Dense_0", "Dense_1")
    for found in (gs.compare(reference, candidate), gs.compare(candidate, reference)):
        assert found.losses is not None
        assert not found.losses.explains
        assert "the losses are" in found.sentence
    assert gs.compare(reference, _program(*REFERENCE, reduce=infinite)).losses is None


@pytest.mark.slow
def test_no_loss_is_a_multiple_of_another_that_is_zero() -> None:
    def surrogate(x: Any) -> Any:
        return 2 * (x.mean() - jax.lax.stop_gradient(x.mean()))

    reference, candidate = _program(*REFERENCE), _program("Dense_0", "Dense_1", reduce=surrogate)
    for found in (gs.compare(reference, candidate), gs.compare(candidate, reference)):
        assert found.losses is not None
        assert not found.losses.explains, found.sentence


@pytest.mark.slow
def test_a_gradient_that_is_the_same_is_no_multiple() -> None:
    def program(one: str, other: str, factor: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(one):
                x = jnp.tanh(batch["x"] @ weights[one]["w"])
            with jax.named_scope(other):
                y = jnp.tanh(batch["y"] @ weights[other]["w"])
            first, second = jnp.square(x).mean(), jnp.square(y).mean()
            return factor * first + second + (factor - 1) * jax.lax.stop_gradient(second)

        own = {one: {"w": KERNELS[0]}, other: {"w": 2 * KERNELS[0]}}
        return gs.capture(loss, own, {"x": INPUTS, "y": INPUTS[:4]}, origins=False)

    found = gs.compare(program("first", "second", 1.0), program("Dense_0", "Dense_1", 5.0))
    assert found.losses is not None
    assert found.losses.cand == pytest.approx(5 * found.losses.ref)
    assert not found.losses.explains, found.sentence


@cache
def _residual(scale: float, dtype: str) -> Dump:
    """A network whose residuals are multiplied by a factor, so that the loss and all gradients are larger."""

    def loss(weights: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for number, kernel in enumerate(weights):
            with jax.named_scope(f"layer{number}"):
                read = hidden * jax.lax.rsqrt(jnp.square(hidden).mean(-1, keepdims=True) + 1e-6)
                made = jax.nn.silu(read.astype(dtype) @ kernel.astype(dtype)).astype(jnp.float32)
                hidden = scale * hidden + made
        with jax.named_scope("objective"):
            return jnp.square(hidden - 1).mean()

    draw = np.random.default_rng(5).normal
    kernels = [draw(size=(64, 64)).astype(np.float32) / 5 for _ in range(8)]
    return gs.capture(loss, kernels, {"x": draw(size=(16, 64)).astype(np.float32)}, origins=False)


@pytest.mark.slow
def test_gradients_that_are_larger_by_several_factors_are_of_no_other_reduction() -> None:
    found = gs.compare(_residual(1.0, "float32"), _residual(1.01, "bfloat16"))
    assert found.verdict == "different"
    assert "reduced otherwise" not in found.sentence, found.sentence


def test_a_loss_that_differs_comes_before_auxiliary_outputs() -> None:
    def captured(*, smooth: float = 1.0, divisor: float = 8.0) -> gs.Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("dense"):
                y = batch["x"] @ weights["kernel"]
            return jnp.log(smooth + jnp.square(y).mean()), {"var": jnp.square(y - y.mean()).sum() / divisor}

        batch = {"x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)}
        weights = {"kernel": np.random.default_rng(1).normal(size=(3, 1)).astype(np.float32)}
        return gs.capture(loss, weights, batch)

    found = gs.compare(captured(), captured(smooth=1.1, divisor=7.0)).sentence
    assert found.startswith("Forward first differs at the loss ("), found
    assert "1 auxiliary output differs" in found
    assert gs.compare(captured(), captured(divisor=7.0)).sentence.startswith("Forward first differs at `var` (")


def test_statistics_show_another_reduction() -> None:
    reference = _program(*REFERENCE, stats_only=True)
    found = gs.compare(reference, _program(*REFERENCE, reduce=jnp.sum))
    assert "and so is every gradient, as far as statistics tell, as a sum over 5 examples is of their mean" in str(
        found
    )
    back = gs.compare(_program(*REFERENCE, reduce=lambda x: -x.sum()), reference)
    assert "it is -0.2 times the reference's (" in str(back)
    assert "as far as statistics tell" in str(back)


def test_statistics_show_that_only_some_gradients_are_a_multiple() -> None:
    def in_part(x: Any) -> Any:
        return 5 * x[0] + jax.lax.stop_gradient(x.sum() - 5 * x[0])

    found = gs.compare(_program(*REFERENCE, stats_only=True), _program(*REFERENCE, reduce=in_part))
    assert found.verdict == "different"
    assert "reduced otherwise" not in str(found)
