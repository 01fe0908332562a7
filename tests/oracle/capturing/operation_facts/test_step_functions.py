"""Gradients that end at a step function are told where a reduction of the same tensor hides it, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.tracing.lookup.step_functions import step_functions
from gradscope.tracing.tracer import trace_loss
from tests.support.data import evenly

P = {
    "w": evenly(-1.0, 1.0, 4, 4),
    "stack": evenly(-0.9, 1.1, 2, 4, 4),
    "code": evenly(-1.1, 0.9, 5, 4),
    "out": evenly(-0.8, 1.0, 4, 4),
}
X = evenly(-1.0, 2.0, 3, 4)


def quantised(w: Any) -> Any:
    """To 7 steps on each side of zero, of the largest magnitude."""
    scale = jnp.abs(w).max() / 7
    return jnp.clip(jnp.round(w / scale), -8, 7) * scale


@jax.custom_vjp
def passed_straight(w: Any) -> Any:
    return jnp.round(w)


passed_straight.defvjp(lambda w: (jnp.round(w), None), lambda _, gradient: (gradient,))


def scale_of(w: Any) -> Any:
    return jnp.abs(w).max() / 7


def of_integers(p: Any, x: Any) -> Any:
    one, other = (jnp.round(each / scale_of(each)).astype(jnp.int8) for each in (x, p["w"]))
    products = jax.lax.dot(one, other, preferred_element_type=jnp.int32).astype(jnp.float32)
    return jnp.square(products * scale_of(x) * scale_of(p["w"])).mean()


def by_column(w: Any) -> Any:
    scale = jnp.abs(w).max(axis=0, keepdims=True) / 7
    return jnp.round(w / scale) * scale


def of_weight(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda p, x: jnp.square(x @ function(p["w"])).mean()


def of_activation(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("layer"):
            x = x @ p["w"]
        return jnp.square(function(x) @ p["w"]).mean()

    return loss


def scanned(p: Any, x: Any) -> Any:
    return jnp.square(jax.lax.scan(lambda x, w: (jnp.tanh(x @ quantised(w)), None), x, p["stack"])[0]).mean()


def decayed(function: Callable[[Any], Any], penalty: Callable[[Any], Any] = jnp.square) -> Callable[[Any, Any], Any]:
    """A loss with a function of the weight, and a penalty of it."""
    return lambda p, x: jnp.square(x @ function(p["w"])).mean() + penalty(p["w"]).sum()


def vector_quantised(
    *, straight: bool = False, decoded: bool = True, one_hot: bool = False
) -> Callable[[Any, Any], Any]:
    """The nearest code of each row, with the losses that pull both to each other."""

    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("layer"):
            z = jnp.tanh(x @ p["w"])
        nearest = jnp.argmin(jnp.square(z[:, None] - p["code"][None]).sum(-1), axis=-1)
        code = jax.nn.one_hot(nearest, 5) @ p["code"] if one_hot else p["code"][nearest]
        pulls = jnp.square(z - jax.lax.stop_gradient(code)).mean() + jnp.square(jax.lax.stop_gradient(z) - code).mean()
        used = z + jax.lax.stop_gradient(code - z) if straight else code
        return pulls + (jnp.square(used @ p["out"] - x).mean() if decoded else 0)

    return loss


def residual_codes(p: Any, x: Any) -> Any:
    """Two codes in turn, of which the second is of the rest; the sum of both goes on straight through."""
    z = jnp.tanh(x @ p["w"])
    rest, coded, pulls = z, jnp.zeros_like(z), jnp.zeros(())
    for n in range(2):
        with jax.named_scope(f"codes{n}"):
            book = p["code"] * (n + 1)
            code = book[jnp.argmin(jnp.square(rest[:, None] - book[None]).sum(-1), axis=-1)]
            pulls += jnp.square(rest - jax.lax.stop_gradient(code)).mean()
            pulls += jnp.square(jax.lax.stop_gradient(rest) - code).mean()
            coded, rest = coded + code, rest - jax.lax.stop_gradient(code)
    return pulls + jnp.square((z + jax.lax.stop_gradient(coded - z)) @ p["out"] - x).mean()


def switch(p: Any, x: Any) -> Any:
    """The first of the experts, times its weight, and a penalty of the logits."""
    with jax.named_scope("layer"):
        logits = x @ p["w"]
    taken = jax.nn.one_hot(jnp.argmax(logits, axis=-1), 4) @ p["stack"].reshape(4, 8)
    weighted = taken * jax.nn.softmax(logits).max(axis=-1, keepdims=True)
    return jnp.square(weighted[:, :4] @ p["out"]).mean() + jnp.square(logits).mean()


ENDED = {
    "vector quantisation": (vector_quantised(), ("activation", "layer", "argmin", ("reduce_sum",))),
    "vector quantisation, one-hot": (
        vector_quantised(one_hot=True),
        ("activation", "layer", "argmin", ("reduce_sum",)),
    ),
    "compared, with weight decay": (
        decayed(lambda w: jnp.where(w > 0, 2.0, -1.0)),
        ("param", "w", "gt", ("reduce_sum",)),
    ),
    "a threshold, with weight decay": (
        lambda p, _: jnp.where(p["stack"][0] > p["w"], p["stack"][0], 0).sum() + jnp.square(p["w"]).mean(),
        ("param", "w", "gt", ("reduce_sum",)),
    ),
    "a product with a comparison, with a norm": (
        lambda p, x: jnp.square(x @ (p["w"] >= 0).astype(x.dtype)).mean() + jnp.linalg.norm(p["w"]),
        ("param", "w", "ge", ("reduce_sum",)),
    ),
    "rounded, with a penalty": (decayed(jnp.round, jnp.abs), ("param", "w", "round", ("reduce_sum",))),
    "weight": (of_weight(quantised), ("param", "w", "round", ("reduce_max",))),
    "weight, each column": (of_weight(by_column), ("param", "w", "round", ("reduce_max",))),
    "by way of integers": (
        of_weight(lambda w: jnp.round(w / scale_of(w)).astype(jnp.int8).astype(jnp.float32) * scale_of(w)),
        ("param", "w", "round", ("reduce_max",)),
    ),
    "cast": (
        of_weight(lambda w: (w / scale_of(w)).astype(jnp.int8).astype(jnp.float32) * scale_of(w)),
        ("param", "w", "convert_element_type", ("reduce_max",)),
    ),
    "product of integers": (of_integers, ("param", "w", "round", ("reduce_max",))),
    "signs": (of_weight(lambda w: jnp.sign(w) * jnp.abs(w).mean()), ("param", "w", "sign", ("reduce_sum",))),
    "checkpointed": (of_weight(jax.checkpoint(quantised)), ("param", "w", "round", ("reduce_max",))),
    "scanned": (scanned, ("param", "stack", "round", ("reduce_max",))),
    "activation": (of_activation(quantised), ("activation", "layer", "round", ("reduce_max",))),
}  # fmt: skip

PASSED = {
    "straight through": of_weight(lambda w: w + jax.lax.stop_gradient(quantised(w) - w)),
    "straight through by a rule": of_weight(lambda w: passed_straight(w / jnp.abs(w).max() * 7) * jnp.abs(w).max() / 7),
    "soft threshold": of_activation(lambda x: jnp.sign(x) * jax.nn.relu(jnp.abs(x) - 1.5)),
    "signed root": of_activation(lambda x: jnp.sign(x) * jnp.sqrt(jnp.abs(x) + 0.1)),
    "fraction": of_activation(lambda x: x - jnp.floor(x)),
    "a scale of steps": of_activation(lambda x: x * jnp.round(jnp.abs(x).mean())),
    "features of signs": of_activation(lambda x: jnp.concatenate([x.mean(1), jnp.sign(x).mean(1)])[None, :4]),
    "constants": of_weight(lambda w: w * jnp.round(evenly(-3.0, 3.0, 4, 4))),
    "compared, and chosen": decayed(lambda w: jnp.where(w > 0, w, 0)),
    "a penalty by comparison": lambda p, x: x.sum() + jnp.where(p["w"] > 0, p["w"], -p["w"]).sum(),
    "pruned, with weight decay": decayed(lambda w: w * (jnp.abs(w) > 0.1).astype(w.dtype)),
    "compared straight through": decayed(lambda w: w + jax.lax.stop_gradient((w > 0).astype(w.dtype) - w)),
    "stopped on purpose, with weight decay": decayed(jax.lax.stop_gradient),
    "compared, and a scale by its norm": decayed(lambda w: w / jnp.where(jnp.linalg.norm(w) > 1, 2.0, 1.0)),
    "vector quantisation, straight through": vector_quantised(straight=True),
    "clusters": vector_quantised(decoded=False),
    "clusters, one-hot": vector_quantised(decoded=False, one_hot=True),
    "residual vector quantisation": residual_codes,
    "router": switch,
    "statistic": lambda p, x: (jnp.square(x @ p["w"]).mean(), quantised(p["w"]).sum()),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDED.values(), ids=ENDED)
def test_the_tensor_the_step_and_the_reduction_are_reported(case: tuple[Callable[..., Any], Any]) -> None:
    loss, right = case
    (fact,) = step_functions(trace_loss(loss, P, X))
    assert (fact.family, fact.name, fact.primitive, fact.beside) == right
    assert fact.source is not None
    assert fact.source.startswith("test_step_functions.py")


@pytest.mark.slow
@pytest.mark.parametrize("loss", PASSED.values(), ids=PASSED)
def test_gradients_that_go_on_are_not_reported(loss: Callable[..., Any]) -> None:
    assert step_functions(trace_loss(loss, P, X)) == ()


def test_the_gradient_is_that_of_the_scale() -> None:
    """JAX itself says so: it is zero but for the largest element."""
    gradient = jax.grad(of_weight(quantised))(P, X)["w"]
    assert np.count_nonzero(gradient) == np.count_nonzero(jnp.abs(P["w"]) == jnp.abs(P["w"]).max())
    (finding,) = [each for each in gs.capture(of_weight(quantised), P, X).findings() if each.rule == "zero-grad"
                  and each.name == "w"]  # fmt: skip
    assert finding.why.startswith("is not that of its elements: round at test_step_functions.py:")
    assert "through reduce_max of the tensor alone" in finding.why
