"""Models with parts behind a `stop_gradient`: targets and teachers, which are healthy, and parts cut off by mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from findings_bench import nets
from findings_bench.cases import Fault, Healthy, Run
from findings_bench.nets import Tree

_SIZE = 32


def _two(seed: int, features: int, width: int, outputs: int) -> Tree:
    return {"in": nets.layer(seed, (features, width), 1.4), "out": nets.layer(seed + 1, (width, outputs))}


def _net(params: Tree, x: Array) -> Array:
    hidden = jax.nn.relu(x @ params["in"]["kernel"] + params["in"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


def _drawn(seed: int, *shape: int) -> Array:
    return jax.random.normal(nets.key(seed), shape)


def _unit(x: Array) -> Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _moves() -> Tree:
    """Returns states, actions, rewards, the states after them, and noise."""
    action = jax.random.randint(nets.key(3), (_SIZE,), 0, 4)
    return {"state": _drawn(1, _SIZE, 8), "next": _drawn(2, _SIZE, 8), "choice": action, "reward": _drawn(4, _SIZE),
            "action": _drawn(5, _SIZE, 2), "noise": _drawn(6, _SIZE, 2)}  # fmt: skip


def _double_q(params: Tree, batch: Tree) -> Array:
    """Learns the values of actions from a target network, at the action that the trained one chooses."""
    chosen = _net(params["online"], batch["next"]).argmax(-1)
    after = jnp.take_along_axis(_net(params["target"], batch["next"]), chosen[:, None], -1)[:, 0]
    target = lax.stop_gradient(batch["reward"] + 0.99 * after)
    value = jnp.take_along_axis(_net(params["online"], batch["state"]), batch["choice"][:, None], -1)[:, 0]
    return jnp.square(value - target).mean()


def _actor_critic(params: Tree, batch: Tree) -> Array:
    """Learns a policy, a critic and a temperature; a target critic is applied to what the policy does."""

    def act(state: Array) -> tuple[Array, Array]:
        mean, deviation = jnp.split(_net(params["actor"], state), 2, -1)
        before = mean + jnp.exp(deviation) * batch["noise"]
        log_density = (-0.5 * jnp.square(batch["noise"]) - deviation - jnp.log(1 - jnp.tanh(before) ** 2 + 1e-6)).sum(
            -1
        )
        return jnp.tanh(before), log_density

    def value(critic: Tree, state: Array, action: Array) -> Array:
        return _net(critic, jnp.concatenate([state, action], -1))[:, 0]

    action, log_density = act(batch["next"])
    soft = value(params["target"], batch["next"], action) - jnp.exp(params["temperature"]) * log_density
    target = lax.stop_gradient(batch["reward"] + 0.99 * soft)
    critic = jnp.square(value(params["critic"], batch["state"], batch["action"]) - target).mean()
    action, log_density = act(batch["state"])
    fixed = lax.stop_gradient({"critic": params["critic"], "temperature": params["temperature"]})
    actor = jnp.exp(fixed["temperature"]) * log_density - value(fixed["critic"], batch["state"], action)
    return critic + actor.mean() - jnp.exp(params["temperature"]) * (lax.stop_gradient(log_density) - 2).mean()


def _latent(params: Tree, batch: Tree) -> Array:
    """Predicts what the average of earlier weights makes of another view (BYOL)."""
    online, target = params["online"], params["target"]
    predicted = _unit(_net(online["predictor"], _net(online["encoder"], batch["state"])))
    return (2 - 2 * (predicted * lax.stop_gradient(_unit(_net(target["encoder"], batch["next"])))).sum(-1)).mean()


def _contrast(params: Tree, batch: Tree) -> Array:
    """Contrasts examples with the keys of an average of earlier weights, by a learned temperature (MoCo)."""
    queries = _unit(_net(params["queries"], batch["state"]))
    keys = lax.stop_gradient(_unit(_net(params["keys"], batch["next"])))
    return nets.cross_entropy(queries @ keys.T * jnp.exp(params["temperature"]), jnp.arange(_SIZE))


def _distil(params: Tree, batch: Tree) -> Array:
    """Teaches a small model by the softened answers of a large one."""
    soft = lax.stop_gradient(jax.nn.softmax(_net(params["teacher"], batch["state"]) / 2))
    logits = _net(params["student"], batch["state"])
    return nets.cross_entropy(logits, batch["choice"]) - (soft * jax.nn.log_softmax(logits / 2)).sum(-1).mean()


def _discriminate(params: Tree, batch: Tree) -> Array:
    """Tells examples from what a generator makes, which this step does not train."""
    made = lax.stop_gradient(_net(params["generator"], batch["noise"]))
    real = _net(params["discriminator"], batch["state"])
    return (jax.nn.softplus(-real) + jax.nn.softplus(_net(params["discriminator"], made))).mean()


def _gated(params: Tree, batch: Tree) -> Array:
    """Classifies by logits that a gate multiplies; the gate is cut off."""
    x = nets.named("act", jax.nn.relu, nets.dense(params, "trunk", batch["state"]))
    gate = lax.stop_gradient(jax.nn.sigmoid(nets.dense(params, "gate", x)))
    return nets.cross_entropy(gate * nets.dense(params, "head", x), batch["choice"])


def _second_head(params: Tree, batch: Tree) -> Array:
    """Learns two tasks; the logits of the second are cut off."""
    x = nets.named("act", jax.nn.relu, nets.dense(params, "trunk", batch["state"]))
    second = lax.stop_gradient(nets.dense(params, "second", x))
    return nets.cross_entropy(nets.dense(params, "head", x), batch["choice"]) + nets.cross_entropy(
        second, batch["choice"]
    )


def _encoded(params: Tree, batch: Tree) -> Array:
    """Classifies what an encoder makes, which is cut off."""
    return nets.cross_entropy(
        _net(params["head"], lax.stop_gradient(_net(params["encoder"], batch["state"]))), batch["choice"]
    )


def _policy(params: Tree, batch: Tree) -> Array:
    """Learns a policy by its advantage over a critic; the log-probability is cut off, in place of the advantage."""
    shares = jax.nn.log_softmax(_net(params["policy"], batch["state"]))
    known = jnp.take_along_axis(shares, batch["choice"][:, None], -1)[:, 0]
    advantage = batch["reward"] - _net(params["critic"], batch["state"])[:, 0]
    return -(lax.stop_gradient(known) * advantage).mean() + jnp.square(advantage).mean()


def _routed(params: Tree, batch: Tree) -> Array:
    """Classifies by experts; the router, which reads the example itself, is cut off."""
    shares = lax.stop_gradient(jax.nn.softmax(nets.dense(params, "router", batch["state"])))
    with jax.named_scope("experts"):
        answers = jnp.einsum("nd,edf->nef", batch["state"], params["experts"])
    return nets.cross_entropy(jnp.einsum("ne,nef->nf", shares, answers), batch["choice"])


def _wide_and_deep(params: Tree, batch: Tree) -> Array:
    """Classifies by a linear and a deep part; the deep one is cut off."""
    deep = lax.stop_gradient(_net(params["deep"], batch["state"]))
    return nets.cross_entropy(nets.dense(params, "wide", batch["state"]) + deep, batch["choice"])


def _healthy(name: str, loss: Callable[[Any, Any], Any], params: Callable[[], Tree]) -> Healthy:
    return Healthy(name, lambda: Run(loss, params(), _moves()))


def _fault(name: str, planted: str, layers: str, loss: Callable[[Any, Any], Any], params: Callable[[], Tree]) -> Fault:
    return Fault(name, planted, ("zero-grad",), layers, lambda: Run(loss, params(), _moves()))


def _trunk_and(*heads: str) -> Tree:
    layers = {name: nets.layer(n + 20, (32, nets.CLASSES)) for n, name in enumerate(heads)}
    return {"trunk": nets.layer(1, (8, 32), 1.4), **layers}


HEALTHY = (
    _healthy("target network", _double_q, lambda: {"online": _two(1, 8, 32, 4), "target": _two(1, 8, 32, 4)}),
    _healthy("target critic of a trained policy", _actor_critic,
             lambda: {"actor": _two(1, 8, 32, 4), "critic": _two(3, 10, 32, 1), "target": _two(3, 10, 32, 1),
                      "temperature": jnp.zeros(())}),
    _healthy("averaged encoder as a target", _latent,
             lambda: {"online": {"encoder": _two(1, 8, 32, 8), "predictor": _two(5, 8, 32, 8)},
                      "target": {"encoder": _two(3, 8, 32, 8)}}),
    _healthy("averaged encoder of keys", _contrast,
             lambda: {"queries": _two(1, 8, 32, 16), "keys": _two(3, 8, 32, 16), "temperature": jnp.ones(())}),
    _healthy("teacher of another size", _distil,
             lambda: {"student": _two(1, 8, 16, 4), "teacher": _two(3, 8, 64, 4)}),
    _healthy("discriminator's step", _discriminate,
             lambda: {"generator": _two(1, 2, 32, 8), "discriminator": _two(3, 8, 32, 1)}),
)  # fmt: skip

FAULTS = (
    _fault("stop-gate", "the gate of the logits is behind stop_gradient", "gate", _gated,
           lambda: _trunk_and("gate", "head")),
    _fault("stop-head", "the logits of a second task are behind stop_gradient", "second", _second_head,
           lambda: _trunk_and("second", "head")),
    _fault("stop-encoder", "what an encoder makes is behind stop_gradient", "encoder", _encoded,
           lambda: {"encoder": _two(1, 8, 32, 16), "head": _two(3, 16, 32, 4)}),
    _fault("stop-policy", "the log-probability of a policy is behind stop_gradient", r"policy|_policy:\d+.*", _policy,
           lambda: {"policy": _two(1, 8, 32, 4), "critic": _two(3, 8, 32, 1)}),
    _fault("stop-router", "the shares of a router are behind stop_gradient", "router", _routed,
           lambda: {"router": nets.layer(1, (8, 4)), "experts": nets.kernel(2, (4, 8, nets.CLASSES))}),
    _fault("stop-deep", "the deep part of a classifier is behind stop_gradient", "deep", _wide_and_deep,
           lambda: {"wide": nets.layer(1, (8, nets.CLASSES)), "deep": _two(3, 8, 32, nets.CLASSES)}),
)  # fmt: skip
