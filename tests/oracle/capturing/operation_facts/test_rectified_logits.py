"""A rectifier whose result is the logits of a loss is told with its line, and no other use of a rectifier is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradscope as gs
from gradscope.presentation.tables.facts import facts
from tests.support.data import drawn
from tests.support.sampled import sampled

X = drawn(0, 16, 8)
PARAMS = {"inner": drawn(1, 8, 8), "outer": drawn(2, 8, 4)}
Y = np.arange(16) % 4
ONE_HOT = np.eye(4, dtype=np.float32)[Y]
relu = jax.nn.relu


def told(loss: Callable[[Any], Any]) -> list[str]:
    """Returns what is said of rectified logits, of a loss of what the last layer makes."""
    dump = gs.capture(lambda p, x: loss(jax.nn.gelu(x @ p["inner"]) @ p["outer"]), PARAMS, X)
    return [text for label, text in facts("dump.npz", dump.manifest) if label in ("rectified", "squashed")]


def nll(z: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(z, Y).mean()


@pytest.mark.slow
@sampled(
    ("function", "loss"),
    [("softmax", lambda z: nll(relu(z))), ("softmax", lambda z: nll(jnp.maximum(z, 0.0))),
     ("softmax", lambda z: nll(jax.nn.relu6(z))), ("softmax", lambda z: nll(jnp.clip(z, 0.0, 6.0))),
     ("softmax", lambda z: nll(jax.vmap(relu)(z))), ("softmax", jax.checkpoint(lambda z: nll(relu(z)))),
     ("softmax", lambda z: -(ONE_HOT * jax.nn.log_softmax(relu(z))).sum()),
     ("softmax", lambda z: -(ONE_HOT * jnp.log(jax.nn.softmax(relu(z)) + 1e-7)).sum()),
     ("softmax", lambda z: optax.softmax_cross_entropy(relu(z), ONE_HOT).mean()),
     ("sigmoid", lambda z: optax.sigmoid_binary_cross_entropy(relu(z), ONE_HOT).mean()),
     ("sigmoid", lambda z: -(ONE_HOT * jnp.log(jax.nn.sigmoid(relu(z)) + 1e-7)).mean())],
)  # fmt: skip
def test_a_rectifier_before_a_loss_that_takes_logits_is_told(function: str, loss: Callable[[Any], Any]) -> None:
    (text,) = told(loss)
    assert text.startswith(
        f"the {function} of the loss takes for logits what the rectifier at test_rectified_logits.py:"
    )


@pytest.mark.slow
@sampled(
    ("by", "function", "loss"),
    [("softplus", "softmax", lambda z: nll(jax.nn.softplus(z))),
     ("softplus", "softmax", lambda z: nll(jnp.log1p(jnp.exp(z)))),
     ("sigmoid", "softmax", lambda z: nll(jax.nn.sigmoid(z))), ("tanh", "softmax", lambda z: nll(jnp.tanh(z))),
     ("tanh", "softmax", jax.checkpoint(lambda z: -(ONE_HOT * jax.nn.log_softmax(jax.vmap(jnp.tanh)(z))).sum())),
     ("tanh", "sigmoid", lambda z: optax.sigmoid_binary_cross_entropy(jnp.tanh(z), ONE_HOT).mean())],
)  # fmt: skip
def test_other_functions_of_limited_results_are_told_by_name(
    by: str, function: str, loss: Callable[[Any], Any]
) -> None:
    (text,) = told(loss)
    assert text.startswith(f"the {function} of the loss takes for logits what the {by} at test_rectified_logits.py:")


@sampled(
    "loss",
    [nll, lambda z: jnp.square(relu(z) - ONE_HOT).mean(),
     lambda z: nll(z) + 0.1 * jnp.abs(relu(z)).mean(),
     lambda z: relu(1 - z * (2 * ONE_HOT - 1)).mean(),
     lambda z: relu(1 + z[:, 0] - z[:, 1]).mean() + jax.nn.logsumexp(z),
     lambda z: (relu(z) - ONE_HOT * jnp.log(relu(z) + 1e-3)).mean(),
     lambda z: nll(relu(z) @ PARAMS["outer"].T @ PARAMS["outer"]),
     lambda z: nll(relu(z) / (relu(z).sum(-1, keepdims=True) + 1e-3) * 10.0),
     lambda z: nll(jax.nn.softmax(relu(z @ z.T)) @ z), lambda z: nll(jax.nn.sigmoid(relu(z)) * z),
     lambda z: nll(jnp.clip(z, -6.0, 6.0)), lambda z: nll(jnp.minimum(z, 6.0)),
     lambda z: nll(jax.nn.leaky_relu(z)), lambda z: jnp.square(jax.nn.softplus(relu(z)) - ONE_HOT).mean(),
     lambda z: nll(30 * jnp.tanh(z / 30)), lambda z: nll(z * jax.nn.sigmoid(z)), lambda z: nll(jax.nn.log_sigmoid(z)),
     lambda z: jnp.square(jnp.tanh(z) - ONE_HOT).mean(), lambda z: jax.nn.softplus(-z * (2 * ONE_HOT - 1)).mean(),
     lambda z: jax.nn.logsumexp(z - jnp.log(jax.nn.softplus(z[:, :1])), axis=-1).mean(),
     lambda z: jax.nn.logsumexp(relu(1 - z), axis=-1).mean(),  # a smooth maximum of what hinges leave
     lambda z: jnp.log(jnp.exp(jnp.tanh(z[8:])).mean()) - jnp.tanh(z[:8]).mean(),  # the bound of a limited critic
     lambda z: (jnp.exp(relu(z)) - 1 - relu(z)).sum(), lambda z: optax.sigmoid_binary_cross_entropy(z, ONE_HOT).mean()],
)  # fmt: skip
def test_any_other_use_of_a_rectifier_is_not(loss: Callable[[Any], Any]) -> None:
    assert told(loss) == []


def test_a_rule_of_a_function_without_results_is_passed_over() -> None:
    """Flax leaves such a call behind where it looks for what the iterations of a scan have in common."""

    @jax.custom_vjp
    def nothing(z: Any) -> tuple[()]:
        return ()

    nothing.defvjp(lambda z: ((), z), lambda z, _: (jnp.zeros_like(z),))

    def loss(z: Any) -> Any:
        nothing(z)
        return nll(relu(z))

    assert len(told(loss)) == 1
