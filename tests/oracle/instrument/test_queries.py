"""Queries: what is fed, stopped, fetched and differentiated, compared with JAX on a model written for the purpose."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from tests.support.data import evenly, filled

PARAMS = {"a": evenly(-1, 1, 3, 4), "b": evenly(0.5, 1, 4, 2), "c": filled(1.0, 2)}
BATCH = {"x": evenly(-2, 2, 5, 3), "label": jax.device_put(np.arange(5, dtype=np.int32) % 2)}


def hidden(params: Any, x: Any) -> Any:
    with jax.named_scope("hidden"):
        return jnp.tanh(x @ params["a"])


def logits(params: Any, h: Any) -> Any:
    with jax.named_scope("logits"):
        return h @ params["b"] + params["c"][None]


def head(z: Any, label: Any) -> Any:
    with jax.named_scope("nll"):
        return -jnp.take_along_axis(jax.nn.log_softmax(z), label[:, None], 1).mean()


def loss(params: Any, batch: Any) -> Any:
    return head(logits(params, hidden(params, batch["x"])), batch["label"])


def capture(**options: Any) -> gs.Dump:
    return gs.capture(loss, PARAMS, BATCH, **options)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


# --- feeding -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fed_value_is_gone_on_with_and_what_lies_behind_it_has_no_part() -> None:
    injected = jnp.full((5, 4), 0.25)
    dump = capture(feed={"hidden": injected})
    value, (grads, of_injected) = jax.value_and_grad(lambda p, h: head(logits(p, h), BATCH["label"]), argnums=(0, 1))(
        PARAMS, injected
    )
    same(dump.loss, value)
    same(dump["param_grad/b"], grads["b"])
    same(dump["activation/hidden"], injected)
    same(dump["activation_grad/hidden"], of_injected)
    assert "param_grad/a" not in dump
    reasons = {(line.family, line.name): line.reason for line in dump.ledger.missing}
    assert reasons["input", "x"] == "eliminated"
    assert dump.manifest.provenance["fragment"]["inputs"] == ["label"]


@pytest.mark.slow
def test_a_fed_argument_takes_the_place_of_the_batchs() -> None:
    x = -BATCH["x"]
    dump = capture(feed={"x": x})
    same(dump.loss, loss(PARAMS, BATCH | {"x": x}))
    same(dump["input/x"], x)


@pytest.mark.slow
def test_a_fed_gradient_is_the_signal_and_the_loss_is_not_run() -> None:
    signal = jnp.linspace(-1, 1, 10).reshape(5, 2)
    dump = capture(feed={"gradient/logits": signal})
    _, pull_back = jax.vjp(lambda p, x: logits(p, hidden(p, x)), PARAMS, BATCH["x"])
    grads, of_x = pull_back(signal)
    for name, expected in grads.items():
        same(dump[f"param_grad/{name}"], expected)
    same(dump["input_grad/x"], of_x)
    same(dump["activation_grad/logits"], signal)
    assert dump.loss is None
    assert "activation/nll" not in dump
    assert dump.manifest.provenance["fragment"]["inputs"] == ["x"]


@pytest.mark.slow
def test_a_fed_gradient_leaves_other_ways_to_the_loss_alone() -> None:
    def both(params: Any, batch: Any) -> Any:
        h = hidden(params, batch["x"])
        return logits(params, h).sum() + (h**2).sum()

    signal = jnp.full((5, 2), 3.0)
    dump = gs.capture(both, PARAMS, BATCH, feed={"gradient/logits": signal})
    expected = jax.grad(
        lambda p: (logits(p, hidden(p, BATCH["x"])) * signal).sum() + (hidden(p, BATCH["x"]) ** 2).sum()
    )
    for name, gradient in expected(PARAMS).items():
        same(dump[f"param_grad/{name}"], gradient)
    same(dump.loss, both(PARAMS, BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("iteration", [0, 2])
def test_one_iteration_of_a_loop_may_be_fed(iteration: int) -> None:
    def looped(params: Any, batch: Any, injected: Any = None) -> Any:
        def step(carry: Any, _: Any) -> Any:
            with jax.named_scope("cell"):
                return jnp.sin(carry * params["c"][0]), None

        with jax.named_scope("rnn"):
            return jax.lax.scan(step, batch["x"].sum(), None, length=4)[0]

    def by_hand(c: Any) -> Any:
        x = BATCH["x"].sum()
        for number in range(4):
            x = jnp.float32(0.7) if number == iteration else jnp.sin(x * c)
        return x

    dump = gs.capture(looped, PARAMS, BATCH, feed={f"rnn[{iteration}]/cell": np.float32(0.7)})
    same(dump.loss, by_hand(1.0))
    same(dump["param_grad/c"][0], jax.grad(by_hand)(1.0))


# --- stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stop_makes_what_lies_behind_it_constant() -> None:
    dump = capture(stop_gradients=["hidden"])
    expected = jax.grad(lambda p: head(logits(p, hidden(PARAMS, BATCH["x"])), BATCH["label"]))(PARAMS)
    assert "param_grad/a" not in dump
    same(dump["param_grad/b"], expected["b"])
    assert "activation_grad/hidden" in dump


# --- fetching ----------------------------------------------------------------------------------------------------


def test_a_fetch_runs_only_what_it_needs() -> None:
    dump = capture(fetch="hidden")
    assert list(dump) == ["activation/hidden"]
    same(dump["activation/hidden"], hidden(PARAMS, BATCH["x"]))
    fragment = dump.manifest.provenance["fragment"]
    assert fragment["inputs"] == ["x"]
    assert fragment["needed"] == 2 < fragment["total"]
    assert dump.loss is None


def test_gradients_may_be_fetched() -> None:
    full = capture()
    dump = capture(fetch=["gradient/hidden", "param_grad/b", "nll"])
    assert set(dump) == {"activation_grad/hidden", "param_grad/b", "activation/nll"}
    for key in dump:
        same(dump[key], full[key])


@pytest.mark.parametrize("name", ["loop[0]/step", "loop[2]/step", "activation/loop[9]/step"])
def test_a_fetch_from_a_while_loop_is_its_last_iteration_whatever_the_number(name: str) -> None:
    def loss(w: Any, batch: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            with jax.named_scope("step"):
                return x * 2.0

        with jax.named_scope("loop"):
            x = jax.lax.fori_loop(0, batch["n"], step, batch["x"])
        return (w * x).sum()

    found = gs.capture(loss, 2.0, {"n": jnp.int32(3), "x": jnp.float32(5.0)}, fetch=name)
    assert [key for key in found if not key.startswith("input")] == ["activation/loop[2]/step"]
    assert found["activation/loop[2]/step"] == 40.0


def test_an_operation_or_a_iteration_of_a_loop_may_be_fetched() -> None:
    same(capture(fetch="hidden/dot_general")["activation/hidden/dot_general"], BATCH["x"] @ PARAMS["a"])


# --- what cannot be asked ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"fetch": "hiden"}, "no value is called hiden"),
        ({"stop_gradients": ["nowhere"]}, "no value is called nowhere"),
        ({"feed": {"hidden": np.zeros((5, 3))}}, r"has shape \[5, 3\], expected \[5, 4\]"),
        ({"feed": {"gradient/label": np.zeros(5)}}, "label is int32 and cannot be differentiated"),
    ],
)
def test_what_cannot_be_requested_is_refused_in_a_sentence(options: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        capture(**options)


@pytest.mark.slow
@pytest.mark.parametrize("ops", [False, True])
def test_what_a_loop_of_no_iterations_makes_is_not_run(ops: bool) -> None:
    def loss(weight: Any, x: Any) -> Any:
        def step(carry: Any, each: Any) -> Any:
            with jax.named_scope("cell"):
                carry = jnp.tanh(carry * weight + each)
            return carry, carry.sum()

        carry, sums = jax.lax.scan(step, x, jnp.zeros((0, 3)))
        return jnp.square(carry * weight).sum() + sums.sum()

    dump = gs.capture(loss, jnp.ones(3), jnp.ones(3), ops=ops, origins=False)
    reasons = {line.reason for line in dump.ledger.missing if line.name.startswith("cell")}
    assert reasons == {"not-executed"}
    forward = gs.capture(loss, jnp.ones(3), jnp.ones(3), ops=ops, origins=False, families=["activation"])
    missing = [line for line in forward.ledger.missing if line.name.startswith("cell")]
    assert {(line.family, line.reason) for line in missing} == {
        ("activation", "not-executed"), ("activation_grad", "filtered")
    }  # fmt: skip
