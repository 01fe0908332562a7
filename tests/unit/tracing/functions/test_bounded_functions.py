"""Softmaxes, sigmoids and tanhs are found by what they compute; parts of activation functions, losses and limits on
parameters are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.lookup.functions.bounded_functions import bounded_functions
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

SQUARE = filled(1.0, 8, 8)
POINTS = filled(1.0, 4, 8)
SEQUENCES = filled(1.0, 2, 5, 8)


def found(loss: Callable[..., Any], batch: Any, *names: str) -> list[tuple[str, int, str | None, list[str]]]:
    """Returns function, entries, layer and inputs of each bounded function of a loss of some square kernels."""
    with jax.numpy_rank_promotion("allow"):
        trace = trace_loss(loss, dict.fromkeys(names, SQUARE), batch)
    return [
        (each.function, each.entries, each.layer and each.layer.path.template,
         [site.names[0].template for site in each.inputs()])
        for each in bounded_functions(trace)
    ]  # fmt: skip


def units(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns the loss of two kernels, between which a function is applied inside a layer."""

    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("units"):
            x = 2 * function(x @ p["one"]) + 1
        return jnp.square(x @ p["two"]).mean()

    return loss


@pytest.mark.parametrize(
    ("function", "name"),
    [(jax.nn.sigmoid, "sigmoid"), (jnp.tanh, "tanh"), (jax.lax.erf, "erf"),
     (lambda x: x[:, ::-1] * jnp.tanh(x), "tanh"),
     (lambda x: jnp.split(x, 2, 1)[0].repeat(2, 1) * jax.nn.sigmoid(x), "sigmoid")],
)  # fmt: skip
def test_a_function_of_single_elements_is_found(function: Callable[[Any], Any], name: str) -> None:
    assert found(units(function), POINTS, "one", "two") == [(name, 1, "units", [])]


@pytest.mark.parametrize(
    "function",
    [jax.nn.silu, lambda x: x * jax.nn.sigmoid(1.7 * x), jax.nn.mish,
     lambda x: jax.nn.gelu(x, approximate=True), lambda x: jax.nn.gelu(x, approximate=False),
     lambda x: x * (1 + jax.lax.erf(x / 2**0.5)) / 2, lambda x: 0.5 * x * (1 + jax.lax.erf(x / 2**0.5)), jax.nn.relu],
)  # fmt: skip
def test_a_part_of_an_activation_function_is_not(function: Callable[[Any], Any]) -> None:
    assert found(units(function), POINTS, "one", "two") == []


def attention(softmax: Callable[[Any], Any], scopes: bool) -> Callable[..., Any]:
    def projected(p: Any, name: str, x: Any) -> Any:
        if not scopes:
            return x @ p[name]
        with jax.named_scope(name):
            return x @ p[name]

    def loss(p: Any, x: Any) -> Any:
        weights = softmax(projected(p, "query", x) @ projected(p, "key", x).swapaxes(1, 2))
        with jax.named_scope("out"):
            return jnp.square(weights @ x @ p["out"]).mean()

    return loss


@jax.custom_jvp
def ruled(scores: Any) -> Any:
    """A softmax with a derivative rule of its own, as JAX had it for long."""
    return jax.nn.softmax(scores)


ruled.defjvp(lambda primals, tangents: (jax.nn.softmax(primals[0]), tangents[0]))


def written_out(scores: Any) -> Any:
    return jnp.exp(scores) / (jnp.exp(scores).sum(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    "softmax",
    [jax.nn.softmax, lambda scores: jax.nn.softmax(scores, where=scores > 0), jax.checkpoint(jax.nn.softmax), ruled,
     written_out, jax.jit(written_out), jax.vmap(jax.vmap(jax.nn.softmax)),
     lambda scores: jax.lax.cond(scores[0, 0, 0] > 0, jax.nn.softmax, written_out, scores)],
)  # fmt: skip
def test_a_softmax_is_found_with_its_entries_and_what_it_is_made_of(softmax: Callable[[Any], Any]) -> None:
    one, *_ = found(attention(softmax, scopes=True), SEQUENCES, "query", "key", "out")
    assert one[:3] == ("softmax", 5, None)
    assert one[3] in (["query", "key"], [])  # a branch receives its operands from outside


def test_shares_that_are_no_exponentials_are_no_softmax() -> None:
    def shares(scores: Any) -> Any:
        return jnp.abs(scores) / jnp.abs(scores).sum(-1, keepdims=True)

    assert found(attention(shares, scopes=True), SEQUENCES, "query", "key", "out") == []


def test_what_a_layer_returns_is_not_found_again() -> None:
    def named(scores: Any) -> Any:
        with jax.named_scope("softmax"):
            return jax.nn.softmax(scores)

    assert found(attention(named, scopes=True), SEQUENCES, "query", "key", "out") == []


def test_a_loss_and_an_answer_are_not_found_not_even_in_every_step_of_a_recurrence() -> None:
    def loss(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = jax.nn.relu(x @ p["into"] + state @ p["again"])
            share = jax.nn.sigmoid(state @ p["out"])
            return state, (share * jnp.log(share)).mean() - jax.nn.log_softmax(state).mean()

        _, losses = jax.lax.scan(step, jnp.zeros((2, 8)), jnp.moveaxis(x, 1, 0))
        return losses.sum()

    assert found(loss, SEQUENCES, "into", "again", "out") == []


def test_gates_of_a_recurrence_are_found() -> None:
    def loss(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            with jax.named_scope("cell"):
                gate = jax.nn.sigmoid(x @ p["into"] + state @ p["again"])
                return gate * state + (1 - gate) * jnp.tanh(x @ p["new"]), None

        state, _ = jax.lax.scan(step, jnp.zeros((2, 8)), jnp.moveaxis(x, 1, 0))
        return jnp.square(state @ p["out"]).mean()

    names = [each[:3] for each in found(loss, SEQUENCES, "into", "again", "new", "out")]
    assert names == [("sigmoid", 1, "cell[*]"), ("tanh", 1, "cell[*]")]


def test_a_limit_on_a_parameter_alone_is_not_found() -> None:
    assert found(lambda p, x: (x @ p["one"] * jax.nn.sigmoid(p["decay"][0]) @ p["two"]).mean(), POINTS,
                 "one", "two", "decay") == []  # fmt: skip


def test_a_batch_that_the_loss_closes_over_counts_as_one() -> None:
    assert found(lambda p, _: units(jnp.tanh)(p, POINTS), (), "one", "two") == [("tanh", 1, "units", [])]


@pytest.mark.parametrize("noise", [jax.random.gumbel, jax.random.normal], ids=["gumbel", "normal"])
def test_the_noise_in_what_a_softmax_receives_is_found(noise: Callable[..., Any]) -> None:
    def loss(p: Any, x: Any) -> Any:
        scores = x @ p["one"]
        return (jax.nn.softmax((scores + noise(jax.random.key(0), scores.shape)) / 0.5) @ p["two"]).mean()

    assert noises(loss, POINTS, "one", "two") == [("add", 1, 1)]


def noises(loss: Callable[..., Any], batch: Any, *names: str) -> list[tuple[str | None, int, int | None] | None]:
    """Returns the primitive, the noisy operand and the axis of the sum before each bounded function."""
    with jax.numpy_rank_promotion("allow"):
        trace = trace_loss(loss, dict.fromkeys(names, SQUARE), batch)
    noise = (each.noise for each in bounded_functions(trace))
    return [None if each is None else (each.site.primitive, each.noise, each.axis) for each in noise]


@pytest.mark.parametrize("scope", [None, "choice"])
def test_noise_of_the_batch_is_found_through_a_scale_and_masks_whether_or_not_a_layer_returns_the_shares(
    scope: str | None,
) -> None:
    def loss(p: Any, batch: Any) -> Any:
        scores, noise = batch[0] @ p["one"], batch[1]
        with contextlib.nullcontext() if scope is None else jax.named_scope(scope):
            shares = jax.nn.softmax(jnp.where(scores > 0, (noise - scores) / 2, -1e9).T, axis=0)
        return (shares.T @ p["two"]).mean()

    assert noises(loss, (POINTS, POINTS), "one", "two") == [("sub", 0, 1)]


def test_a_signal_with_a_bias_before_a_sigmoid_is_no_noise() -> None:
    def gated(bias: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def loss(p: Any, x: Any) -> Any:
            with jax.named_scope("layer"):
                gates = 2 * jax.nn.sigmoid(bias(p, x) + x)
            return jnp.square(gates @ p["two"]).mean()

        return loss

    assert noises(gated(lambda p, x: jnp.broadcast_to(p["one"][0], x.shape)), POINTS, "one", "two") == [None]
    assert noises(gated(lambda p, x: x @ p["one"]), POINTS, "one", "two") == [("add", 1, None)]


def test_a_constant_bias_of_scores_is_no_noise() -> None:
    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("layer"):
            return (jax.nn.softmax(x @ p["one"] + jnp.arange(8.0)) @ p["two"]).mean()

    assert noises(loss, POINTS, "one", "two") == [None]


@pytest.mark.parametrize(
    ("second", "again"),
    [(jax.nn.log_softmax, True), (jax.nn.softmax, True), (lambda x: jax.nn.logsumexp(x, axis=-1), True),
     (lambda x: jax.nn.log_softmax(x, axis=0), False), (lambda x: jax.nn.log_softmax(jnp.log(x)), False),
     (lambda x: jax.nn.log_softmax(jax.lax.stop_gradient(x)) * x, False), (jnp.exp, False)],
)  # fmt: skip
def test_a_softmax_of_a_softmax_is_found_over_the_same_axis(second: Callable[[Any], Any], again: bool) -> None:
    def loss(p: Any, x: Any) -> Any:
        return jnp.square(second(jax.nn.softmax(x @ p["one"]))).mean()

    with jax.numpy_rank_promotion("allow"):
        trace = trace_loss(loss, {"one": SQUARE}, POINTS)
    assert any(each.again for each in bounded_functions(trace)) is again


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -labels * jax.nn.log_sigmoid(logits) - (1 - labels) * jax.nn.log_sigmoid(-logits)


@pytest.mark.parametrize(
    ("loss", "again"),
    [
        (lambda p, y, _: cross_entropy(p, y), True),
        (lambda p, y, _: cross_entropy(p.reshape(-1), y.reshape(-1)), True),
        (lambda p, y, _: jnp.maximum(p, 0.0) - p * y + jnp.log1p(jnp.exp(-jnp.abs(p))), True),
        (lambda p, y, _: -y * jnp.log(jax.nn.sigmoid(p)), True),
        (lambda _, y, z: cross_entropy(z, y), False),
        (lambda p, y, z: -p * jax.nn.log_sigmoid(z) - (1 - p) * jax.nn.log_sigmoid(-z), False),
        (lambda p, y, _: jnp.log(jax.nn.softplus(p)) + (y / jax.nn.softplus(p)) ** 2, False),
        (lambda p, y, _: -jax.nn.log_sigmoid(p - p[::-1]) - jax.nn.log_sigmoid(p[::-1] - p), False),
        (lambda p, y, _: jax.nn.sigmoid(10.0 * (p - 0.5)), False),
        (lambda p, y, _: -y * jnp.log(p) - (1 - y) * jnp.log1p(-p), False),
        (lambda p, y, _: (1 - p) ** 2 * y + jnp.exp(p), False),
    ],
    ids=["logits are expected", "in another shape", "written out", "a sigmoid behind it", "logits", "its own targets",
         "a scale", "ranks", "sharpened", "probabilities", "focal"],
)  # fmt: skip
def test_a_sigmoid_whose_result_is_taken_for_logits_is_found(loss: Callable[..., Any], again: bool) -> None:
    def mean(p: Any, batch: Any) -> Any:
        logits = batch["x"] @ p["one"]
        return loss(jax.nn.sigmoid(logits), batch["y"], logits).mean()

    trace = trace_loss(mean, {"one": SQUARE}, {"x": POINTS, "y": POINTS})
    assert any(each.again for each in bounded_functions(trace)) is again
