"""A step is blamed where the other program has the value of another operation of its kind, or stands for several."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.step_kinds import in_its_place
from tests.support.sampled import sampled

_draw = np.random.default_rng(12).normal
IN, OUT, NEXT = (_draw(size=size).astype(np.float32) for size in ((4, 12), (6, 4), (4, 4)))
SCALE = (1 + _draw(size=(4,)) / 4).astype(np.float32)
INPUTS = _draw(size=(3, 8, 4)).astype(np.float32)
LAST = _draw(size=(12, 3)).astype(np.float32)


@cache
def _gated(*, port: bool, other_side: bool = False) -> Dump:
    """A gated layer with a residual sum, whose steps a port has in one scope."""

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        if port:
            with jax.named_scope("GLU_0"):
                with jax.named_scope("wi_0"):
                    a = x @ weights["wi_0"]["kernel"]
                with jax.named_scope("wi_1"):
                    b = x @ weights["wi_1"]["kernel"]
                h = jax.nn.gelu(a) * b if other_side else a * jax.nn.gelu(b)
                with jax.named_scope("wo"):
                    h = h @ weights["wo"]["kernel"]
                x = x + h
        else:
            with jax.named_scope("proj_in"):
                a, b = jnp.split(x @ weights["proj_in"]["weight"].T, 2, -1)
            with jax.named_scope("gate"):
                h = a * jax.nn.gelu(b)
            with jax.named_scope("proj_out"):
                x = x + h @ weights["proj_out"]["weight"].T
        with jax.named_scope("head"):
            x = x @ weights["head"]["kernel"]
        return jnp.square(x).mean()

    halves = {"wi_0": {"kernel": IN[:, :6]}, "wi_1": {"kernel": IN[:, 6:]}, "wo": {"kernel": OUT}}
    packed = {"proj_in": {"weight": IN.T}, "proj_out": {"weight": OUT.T}}
    return gs.capture(loss, {**(halves if port else packed), "head": {"kernel": NEXT}}, {"x": INPUTS}, origins=False)


@pytest.mark.slow
def test_a_step_that_the_other_program_has_inside_of_a_layer_is_suspected_before_that() -> None:
    reference = _gated(port=False)
    assert gs.compare(reference, _gated(port=True)).verdict == "same"
    found = gs.compare(reference, _gated(port=True, other_side=True))
    assert [row.name for row in found.blame.suspects] == ["gate"], found.sentence


@cache
def _pooled(names: tuple[str, str, str], *, mean: bool = False, inside: bool) -> Dump:
    """A rectifier and a pooling before a scale, where the port has both steps in one scope."""

    def loss(weights: Any, batch: Any) -> Any:
        stem, scale, head = names
        with jax.named_scope(stem):
            with jax.named_scope("linear"):
                x = batch["x"] @ weights[stem]["kernel"]
            if inside:
                x = jax.nn.silu(x).reshape(3, 4, 2, 4)
                x = x.mean(2) if mean else x.max(2)
            else:
                with jax.named_scope("act"):
                    x = jax.nn.silu(x)
                with jax.named_scope("pool"):
                    x = x.reshape(3, 4, 2, 4).max(2)
        with jax.named_scope(scale):
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weights[scale]["scale"][None, None]
        with jax.named_scope(head):
            x = x @ weights[head]["kernel"]
        return jnp.square(jnp.tanh(x)).mean()

    stem, scale, head = names
    own = {stem: {"kernel": NEXT}, scale: {"scale": SCALE}, head: {"kernel": IN}}
    return gs.capture(loss, own, {"x": INPUTS}, origins=False)


def test_another_operation_is_reported_by_the_value_that_the_other_program_has_of_it() -> None:
    reference = _pooled(("stem", "norm", "head"), inside=False)
    assert gs.compare(reference, _pooled(("Stem_0", "RMSNorm_0", "Dense_0"), inside=True)).verdict == "same"
    found = gs.compare(reference, _pooled(("Stem_0", "RMSNorm_0", "Dense_0"), inside=True, mean=True))
    first = found.first_divergence.forward
    assert first is not None
    assert (first.name, found.blame.suspects) == ("stem/pool", ()), found.sentence


@cache
def _beside(*, port: bool, beside: Any = None, last: Any = jnp.tanh) -> Dump:
    """A rectifier between two layers, in whose place a port has a scope around a step beside it, without effect."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "fc1"):
            x = batch["x"] @ weights["Dense_0" if port else "fc1"]
        if port:
            with jax.named_scope("Rearrange_0"):
                turned = beside(x).swapaxes(1, 2).reshape(16, 18)  # no layout of what the other program has
            x = jax.nn.relu(x) + 0 * turned.reshape(x.shape)
        else:
            with jax.named_scope("act"):
                x = jax.nn.relu(x)
        with jax.named_scope("Dense_1" if port else "fc2"):
            x = last(x @ weights["Dense_1" if port else "fc2"])
        return jnp.square(x).mean()

    own = {"Dense_0": IN, "Dense_1": LAST} if port else {"fc1": IN, "fc2": LAST}
    return gs.capture(loss, own, {"x": INPUTS}, origins=False)


@sampled(
    ("beside", "last"),
    [(jnp.positive, jax.nn.sigmoid), (jax.nn.silu, jax.nn.sigmoid), (jnp.positive, jnp.sin)],
    ids=["another order", "another function", "nothing known of the layer"],
)
def test_a_step_beside_another_is_not_in_its_place(beside: Any, last: Any) -> None:
    reference = _beside(port=False)
    assert gs.compare(reference, _beside(port=True, beside=beside)).verdict == "same"
    found = gs.compare(reference, _beside(port=True, beside=beside, last=last))
    assert "in the candidate the" not in found.sentence, found.sentence
    if last is jax.nn.sigmoid:  # the output shows that the layer reads the right values
        assert found.blame.suspects == ()
        assert found.sentence.startswith("Forward first differs at `fc2`"), found.sentence


@cache
def _nested(*, inner: bool, slope: float = 1.0) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("down"):
            with jax.named_scope("norm"):
                x = batch["x"] * weights["scale"][None, None]
            if inner:
                with jax.named_scope("conv"):
                    x = jnp.tanh(x @ weights["kernel"])
            else:
                x = jnp.tanh(slope * (x @ weights["kernel"]))
        return jnp.square(x).mean()

    return gs.capture(loss, {"scale": SCALE, "kernel": NEXT}, {"x": INPUTS}, origins=False)


@pytest.mark.slow
def test_the_part_of_a_layer_is_named_that_computes_its_value() -> None:
    found = gs.compare(_nested(inner=True), _nested(inner=False, slope=2.0))
    assert found.blame.part == "down/conv"
    assert "made in `down/conv`)" in found.sentence, found.sentence


def test_an_operation_is_found_by_the_elements_of_what_another_makes() -> None:
    windows = INPUTS.astype(np.float64).reshape(3, 4, 2, 4)
    mean, noise = windows.mean(2).transpose(0, 2, 1), _draw(size=(3, 4, 4))
    found = in_its_place(INPUTS.astype(np.float64), windows.max(2), [noise, mean])
    assert found is not None
    assert [each.words for each in found] == ["maximum", "mean"]
    assert in_its_place(INPUTS.astype(np.float64), windows.max(2), [noise]) is None
    assert in_its_place(INPUTS.astype(np.float64), windows.max(2), [windows.max(2)]) is None


@cache
def _packed_gate(*, port: bool, swapped: bool = False) -> Dump:
    """A gate of two halves of a layer, for which only the reference has a scope."""

    def gate(x: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        return second * jax.nn.sigmoid(first) if swapped else first * jax.nn.sigmoid(second)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "up"):
            x = batch["x"] @ weights["up"]
        with nullcontext() if port else jax.named_scope("glu"):
            x = gate(x)
        with jax.named_scope("Dense_1" if port else "down"):
            x = x @ weights["down"]
        return jnp.square(jnp.tanh(x / 8)).mean()

    up = np.random.default_rng(5).normal(size=(4, 12)).astype(np.float32)
    return gs.capture(loss, {"up": up, "down": OUT}, {"x": INPUTS}, origins=False)


@pytest.mark.slow
def test_the_halves_of_a_gate_that_a_port_takes_in_another_order_are_told() -> None:
    reference = _packed_gate(port=False)
    assert gs.compare(reference, _packed_gate(port=True)).verdict == "same"
    sentence = gs.compare(reference, _packed_gate(port=True, swapped=True)).sentence
    of_ref = "`glu` is the first half times the sigmoid of the second of what it reads"
    assert f"{of_ref}, and in the candidate the second half times the sigmoid of the first." in sentence, sentence
