"""Healthy models of kinds that are trained today, at the initialisation and after 30 steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from findings_bench import nets
from findings_bench.cases import Healthy, Run, trained
from findings_bench.nets import Tree

_STEPS = 30


def _two(seed: int, features: int, width: int, outputs: int) -> Tree:
    return {"in": nets.layer(seed, (features, width), 1.4), "out": nets.layer(seed + 1, (width, outputs))}


def _net(params: Tree, x: Array) -> Array:
    return nets.dense(params, "out", nets.named("act", jax.nn.relu, nets.dense(params, "in", x)))


def _residual_codes(params: Tree, batch: Tree) -> Array:
    """Encodes by two codebooks in turn, straight through, with a loss of the books and of commitment."""
    with jax.named_scope("encoder"):
        encoded = _net(params["encoder"], batch["x"])
    rest, coded, loss = encoded, jnp.zeros_like(encoded), jnp.zeros(())
    for n in range(2):
        with jax.named_scope(f"codes{n}"):
            book = params[f"book{n}"]
            chosen = book[jnp.square(rest[:, None] - book).sum(-1).argmin(-1)]
            loss += jnp.square(lax.stop_gradient(rest) - chosen).mean()
            loss += 0.25 * jnp.square(rest - lax.stop_gradient(chosen)).mean()
            coded, rest = coded + chosen, rest - lax.stop_gradient(chosen)
    with jax.named_scope("decoder"):
        made = _net(params["decoder"], encoded + lax.stop_gradient(coded - encoded))
    return jnp.square(made - batch["x"]).mean() + loss


def _adversaries(params: Tree, batch: Tree) -> Array:
    """Trains a generator and a discriminator in one program, each against the other as it is."""
    with jax.named_scope("generator"):
        made = _net(params["generator"], batch["noise"])
    with jax.named_scope("discriminator"):
        real = _net(params["discriminator"], batch["x"])
        fake = _net(params["discriminator"], lax.stop_gradient(made))
    with jax.named_scope("fixed"):
        fooled = _net(lax.stop_gradient(params["discriminator"]), made)
    return (jax.nn.softplus(-real) + jax.nn.softplus(fake) + jax.nn.softplus(-fooled)).mean()


def _critic(params: Tree, batch: Tree) -> Array:
    """Trains a critic with a penalty of its gradient's norm; its last bias cancels out."""

    def judge(x: Array) -> Array:
        return (jax.nn.softplus(x @ params["one"]["kernel"]) @ params["two"]["kernel"] + params["two"]["bias"])[..., 0]

    between = 0.3 * batch["x"] + 0.7 * batch["other"]
    slopes = jax.vmap(jax.grad(lambda x: judge(x[None])[0]))(between)
    penalty = jnp.square(jnp.sqrt(jnp.square(slopes).sum(-1) + 1e-12) - 1).mean()
    return judge(batch["other"]).mean() - judge(batch["x"]).mean() + 10 * penalty


def _energy(params: Tree, batch: Tree) -> Array:
    """Learns forces: the model's answer is the derivative of an energy, whose last bias is lost in it."""

    def energy(x: Array) -> Array:
        for name in ("in", "mid"):
            x = nets.named(f"{name}_act", jnp.tanh, nets.dense(params, name, x))
        return nets.dense(params, "out", x).sum()

    return jnp.square(jax.grad(energy)(batch["x"]) - batch["other"]).mean()


def _noisy_values(params: Tree, batch: Tree) -> Array:
    """Learns distributions of values by noisy layers, from a target network, at the action the trained one chooses."""
    atoms = jnp.linspace(-5.0, 5.0, 11)

    def logits(layers: Tree, x: Array, seed: int) -> Array:
        for n, layer in enumerate((layers["in"], layers["out"])):
            noise = jax.random.normal(nets.key(seed + n), layer["kernel"].shape)
            x = x @ (layer["kernel"] + layer["deviation"] * noise)
            x = x if n else jax.nn.relu(x)
        return x.reshape(-1, 4, 11)

    best = (jax.nn.softmax(logits(params["online"], batch["next"], 1)) * atoms).sum(-1).argmax(-1)
    shares = jax.nn.softmax(logits(params["target"], batch["next"], 3))
    shares = jnp.take_along_axis(shares, best[:, None, None], 1)[:, 0]
    moved = jnp.clip(batch["reward"][:, None] + 0.99 * atoms, -5, 5)
    near = jnp.clip(1 - jnp.abs(moved[:, :, None] - atoms), 0, 1)
    target = lax.stop_gradient((shares[:, :, None] * near).sum(1))
    known = jax.nn.log_softmax(logits(params["online"], batch["x"], 5))
    return -(target * jnp.take_along_axis(known, batch["y"][:, None, None], 1)[:, 0]).sum(-1).mean()


def _noisy_net(seed: int) -> Tree:
    shapes = {"in": (16, 32), "out": (32, 44)}
    return {
        name: {"kernel": nets.kernel(seed + n, shape), "deviation": jnp.full(shape, 0.5 / shape[0] ** 0.5)}
        for n, (name, shape) in enumerate(shapes.items())
    }


def _preferences(params: Tree, batch: Tree) -> Array:
    """Learns from pairs of a chosen and a rejected answer, beside a reference that stays as it is (DPO)."""

    def gain(answers: Array) -> Array:
        policy, reference = (jax.nn.log_softmax(_net(params[name], batch["x"])) for name in ("policy", "reference"))
        own = jnp.take_along_axis(policy - lax.stop_gradient(reference), answers[:, None], -1)
        return own[:, 0]

    return -jax.nn.log_sigmoid(0.1 * (gain(batch["y"]) - gain((batch["y"] + 1) % nets.CLASSES))).mean()


def _architecture(params: Tree, batch: Tree) -> Array:
    """Chooses among operations by cold noise that is drawn and weights that no example goes into."""
    x = batch["x"]
    for n in range(3):
        cell = params[f"cell{n}"]
        with jax.named_scope(f"cell{n}"):
            drawn = jax.random.gumbel(nets.key(n), (3,))
            shares = nets.named("choice", lambda scores: jax.nn.softmax(scores / 0.05), cell["scores"] + drawn)
            x = shares[0] * jax.nn.relu(x @ cell["one"]) + shares[1] * jnp.tanh(x @ cell["other"]) + shares[2] * x
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _cells() -> Tree:
    def cell(n: int) -> Tree:
        kernels = {name: nets.kernel(10 * n + at, (16, 16), 1.4) for at, name in enumerate(("one", "other"))}
        return {"scores": jnp.zeros(3), **kernels}

    return {**{f"cell{n}": cell(n) for n in range(3)}, "head": nets.layer(99, (16, nets.CLASSES))}


def _dispatch(params: Tree, batch: Tree) -> Array:
    """Sends mixtures of tokens to experts by a softmax over tokens, and back by one over slots."""
    x = nets.dense(params, "stem", batch["x"])
    with jax.named_scope("experts"):
        scores = x @ params["slots"]
        sent = jnp.einsum("ntd,nts->nsd", x, jax.nn.softmax(scores, axis=1))
        made = jax.nn.gelu(jnp.einsum("nsd,sdf->nsf", sent, params["inner"]))
        made = jnp.einsum("nsf,sfd->nsd", made, params["outer"])
        x = x + jnp.einsum("nts,nsd->ntd", jax.nn.softmax(scores, axis=2), made)
    return nets.cross_entropy(nets.dense(params, "head", x.mean(1)), batch["y"])


def _slots() -> Tree:
    experts = {"inner": nets.kernel(2, (4, 32, 64), 2.0), "outer": nets.kernel(3, (4, 64, 32), 2.0)}
    return {"stem": nets.layer(1, (16, 32)), "slots": nets.kernel(4, (32, 4)), **experts,
            "head": nets.layer(99, (32, nets.CLASSES))}  # fmt: skip


def _points() -> Tree:
    drawn = {name: jax.random.normal(nets.key(n + 30), (32, 16)) for n, name in enumerate(("next", "other"))}
    noise, reward = jax.random.normal(nets.key(40), (32, 4)), jax.random.normal(nets.key(41), (32,))
    return {**nets.points(), **drawn, "noise": noise, "reward": reward}


def _coupling(params: Tree, batch: Tree) -> Array:
    """Learns a density by couplings that leave their half as it is at first, with a learned bound of the scale."""
    x, volume = batch["x"], jnp.zeros(batch["x"].shape[0])
    for n in range(4):
        one, other = jnp.split(x[:, :: -1 if n % 2 else 1], 2, axis=-1)
        scale, shift = jnp.split(_net(params[f"coupling{n}"], one), 2, axis=-1)
        scale = jnp.exp(params[f"coupling{n}"]["bound"]) * jnp.tanh(scale)
        x, volume = jnp.concatenate([one, other * jnp.exp(scale) + shift], -1), volume + scale.sum(-1)
    return (0.5 * jnp.square(x).sum(-1) - volume).mean()


def _couplings() -> Tree:
    layers = {f"coupling{n}": {**_two(n + 1, 8, 32, 16), "bound": jnp.zeros(8)} for n in range(4)}
    for each in layers.values():
        each["out"] = {"kernel": jnp.zeros((32, 16)), "bias": jnp.zeros(16)}
    return layers


def _both(
    name: str, loss: Callable[[Any, Any], Any], params: Callable[[], Tree], batch: Callable[[], Tree] = _points
) -> Iterator[Healthy]:
    """Yields a model at the initialisation and after some steps."""
    yield Healthy(name, lambda: Run(loss, params(), batch()))
    yield Healthy(
        f"{name}, {_STEPS} steps",
        lambda: Run(loss, trained(loss, params(), [batch()], optax.adam(1e-3), _STEPS), batch()),
    )


HEALTHY = (
    *_both("residual codebooks", _residual_codes,
           lambda: {"encoder": _two(1, 16, 32, 8), "decoder": _two(3, 8, 32, 16),
                    "book0": 0.5 * nets.kernel(5, (1, 16, 8))[0], "book1": 0.25 * nets.kernel(6, (1, 16, 8))[0]}),
    *_both("generator and discriminator", _adversaries,
           lambda: {"generator": _two(1, 4, 32, 16), "discriminator": _two(3, 16, 32, 1)}),
    *_both("critic with a penalty", _critic,
           lambda: {"one": {"kernel": nets.kernel(1, (16, 32))}, "two": nets.layer(2, (32, 1))}),
    *_both("forces of an energy", _energy,
           lambda: {"in": nets.layer(1, (16, 256)), "mid": nets.layer(2, (256, 256)), "out": nets.layer(3, (256, 1))}),
    *_both("noisy distributional values", _noisy_values,
           lambda: {"online": _noisy_net(1), "target": _noisy_net(3)}),
    *_both("preferences beside a reference", _preferences,
           lambda: {"policy": _two(1, 16, 32, 4), "reference": _two(1, 16, 32, 4)}),
    *_both("search of an architecture", _architecture, _cells),
    *_both("experts of soft slots", _dispatch, _slots, nets.tokens),
    *_both("density by couplings", _coupling, _couplings),
)  # fmt: skip
