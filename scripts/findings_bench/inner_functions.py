"""Models whose softmaxes, sigmoids and tanhs have no scope of their own: healthy ones, and saturated ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from findings_bench import nets
from findings_bench.cases import Fault, Healthy, Run, trained
from findings_bench.healthy_plain import prepared
from findings_bench.nets import Tree

Attend = Callable[[Array, Array], Array]
_WIDTH = 64
_GATES = ("input", "forget", "output", "new")


def _scaled(query: Array, key: Array) -> Array:
    return jax.nn.softmax(jnp.einsum("ntd,nsd->nts", query, key) / math.sqrt(query.shape[-1]))


def _unscaled(query: Array, key: Array) -> Array:
    return jax.nn.softmax(jnp.einsum("ntd,nsd->nts", query, key))


def _written_out(query: Array, key: Array) -> Array:
    scores = jnp.einsum("ntd,nsd->nts", query, key)
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _causal(query: Array, key: Array) -> Array:
    scores = jnp.einsum("ntd,nsd->nts", query, key) / math.sqrt(query.shape[-1])
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -jnp.inf))


def _capped(query: Array, key: Array) -> Array:
    return jax.nn.softmax(20 * jnp.tanh(jnp.einsum("ntd,nsd->nts", query, key) / math.sqrt(query.shape[-1]) / 20))


def _attention(attend: Attend, scope: str | None) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of one head of attention, which has a single scope or none."""

    def mixed(params: Tree, x: Array) -> Array:
        query, key, value = (nets.dense(params, name, x) for name in ("query", "key", "value"))
        return attend(query, key) @ value

    def loss(params: Tree, batch: Tree) -> Array:
        x = nets.norm(params, "norm", nets.dense(params, "stem", batch["x"]))
        y = mixed(params, x) if scope is None else nets.named(scope, lambda x: mixed(params, x), x)
        with jax.named_scope("pool"):
            x = (x + nets.dense(params, "out", y)).mean(1)
        return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])

    return loss


def _scanned(attend: Attend) -> Callable[[Tree, Tree], Array]:
    """Returns the loss of three blocks of attention that a scan runs."""

    def loss(params: Tree, batch: Tree) -> Array:
        def step(x: Array, block: Tree) -> tuple[Array, None]:
            with jax.named_scope("block"):
                y = nets.norm(block, "norm", x)
                return x + nets.dense(block, "out", attend(y @ block["query"], y @ block["key"]) @ y), None

        x, _ = lax.scan(step, nets.dense(params, "stem", batch["x"]), params["blocks"])
        return nets.cross_entropy(nets.dense(params, "head", x.mean(1)), batch["y"])

    return loss


def _blocks() -> Tree:
    def block(n: int) -> Tree:
        square = (_WIDTH, _WIDTH)
        return {"norm": nets.norm_params(_WIDTH), "out": nets.layer(n, square),
                "query": nets.kernel(n + 10, square), "key": nets.kernel(n + 20, square)}  # fmt: skip

    blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(block, range(3)))
    return {"stem": nets.layer(7, (16, _WIDTH)), "blocks": blocks, "head": nets.layer(99, (_WIDTH, nets.CLASSES))}


def _lstm(params: Tree, batch: Tree) -> Array:
    """Classifies sequences by the last state of an LSTM, whose cell is one scope."""

    def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], None]:
        hidden, memory = state
        with jax.named_scope("cell"):
            both = jnp.concatenate([x, hidden], axis=-1)
            into, forget, out, new = (both @ params[name]["kernel"] + params[name]["bias"] for name in _GATES)
            memory = jax.nn.sigmoid(forget + 1) * memory + jax.nn.sigmoid(into) * jnp.tanh(new)
            return (jax.nn.sigmoid(out) * jnp.tanh(memory), memory), None

    x = jnp.moveaxis(batch["x"], 1, 0)
    start = jnp.zeros((x.shape[1], 16), x.dtype)
    (hidden, _), _ = lax.scan(step, (start, start), x)
    return nets.cross_entropy(nets.dense(params, "head", hidden), batch["y"])


def _lstm_params() -> Tree:
    return {**{name: nets.layer(n, (20, 16)) for n, name in enumerate(_GATES)},
            "head": nets.layer(99, (16, nets.CLASSES))}  # fmt: skip


def _gru(params: Tree, batch: Tree) -> Array:
    """Predicts at every step whether a feature is positive, from the state of a GRU without scopes but its kernels'."""

    def step(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        x, label = inputs
        both = jnp.concatenate([x, state], axis=-1)
        update, reset = (jax.nn.sigmoid(nets.dense(params, name, both)) for name in ("update", "reset"))
        new = jnp.tanh(nets.dense(params, "new", jnp.concatenate([x, reset * state], axis=-1)))
        state = (1 - update) * new + update * state
        share = jax.nn.sigmoid(nets.dense(params, "head", state))[:, 0]
        return state, -(label * jnp.log(share + 1e-6) + (1 - label) * jnp.log(1 - share + 1e-6)).mean()

    x = jnp.moveaxis(batch["x"], 1, 0)
    labels = (x[..., 0] > 0).astype(x.dtype)
    _, losses = lax.scan(step, jnp.zeros((x.shape[1], 16), x.dtype), (x, labels))
    return losses.mean()


def _gru_params() -> Tree:
    return {**{name: nets.layer(n, (20, 16)) for n, name in enumerate(("update", "reset", "new"))},
            "head": nets.layer(99, (16, 1))}  # fmt: skip


def _cell(module: str, **options: Any) -> Run:
    """Returns a recurrent layer of Linen."""
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            states: Any = nn.RNN(getattr(nn, module)(16))(x)
            return nn.Dense(nets.CLASSES)(states[:, -1])

    net: Any = Net()
    variables = jax.jit(net.init)(nets.key(), nets.sequences(12)["x"])
    return prepared(lambda v, b: nets.cross_entropy(net.apply(v, b["x"]), b["y"]), variables,
                    lambda _: nets.sequences(12), **options)  # fmt: skip


def _units(params: Tree, batch: Tree, gated: Callable[[Tree, Array], Array]) -> Array:
    x = nets.dense(params, "stem", batch["x"])
    for n in range(3):
        with jax.named_scope(f"block{n}"):
            block = params[f"block{n}"]
            x = x + gated(block, x) @ block["outer"]
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _units_params() -> Tree:
    blocks = {
        f"block{n}": {"inner": nets.kernel(n, (32, 64)), "outer": nets.kernel(n + 9, (64, 32), 0.5)} for n in range(3)
    }
    return {"stem": nets.layer(98, (16, 32)), **blocks, "head": nets.layer(99, (32, nets.CLASSES))}


def _of(gated: Callable[[Tree, Array], Array]) -> Callable[[Tree, Tree], Array]:
    return lambda params, batch: _units(params, batch, gated)


def _gelu(block: Tree, x: Array) -> Array:
    return jax.nn.gelu(x @ block["inner"])


def _gelu_of_large(block: Tree, x: Array) -> Array:
    return jax.nn.gelu(30 * (x @ block["inner"]), approximate=True) / 30


def _silu(block: Tree, x: Array) -> Array:
    return jax.nn.silu(30 * (x @ block["inner"])) / 30


def _sigmoid_unit(block: Tree, x: Array) -> Array:
    return (x @ block["inner"]) * jax.nn.sigmoid(x @ block["gate"]["kernel"] + block["gate"]["bias"])


def _squashed(params: Tree, batch: Tree) -> Array:
    x = nets.dense(params, "stem", batch["x"])
    for n in range(3):
        with jax.named_scope(f"block{n}"):
            block = params[f"block{n}"]
            x = jnp.tanh(x @ block["inner"]) @ block["outer"]
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _decays(params: Tree, batch: Tree) -> Array:
    """Classifies sequences by a linear recurrence, whose decays are sigmoids of parameters and close to 1."""
    with jax.named_scope("recurrence"):
        decay = jax.nn.sigmoid(params["decay"])
        x = jnp.moveaxis(batch["x"], 1, 0) @ params["input"]
        state, _ = lax.scan(lambda state, x: (decay * state + (1 - decay) * x, None), jnp.zeros_like(x[0]), x)
    return nets.cross_entropy(nets.dense(params, "head", state), batch["y"])


def _decays_params() -> Tree:
    return {"decay": jnp.full(16, 6.0), "input": nets.kernel(0, (4, 16)),
            "head": nets.layer(99, (16, nets.CLASSES))}  # fmt: skip


def _gated_params(bias: float = 0.0) -> Tree:
    params = _units_params()
    for n in range(3):
        params[f"block{n}"]["gate"] = {**nets.layer(n + 5, (32, 64)), "bias": jnp.full(64, bias)}
    return params


def _highway(params: Tree, batch: Tree) -> Array:
    x = nets.named("act0", jax.nn.relu, nets.dense(params, "dense0", batch["x"]))
    gate = jax.nn.sigmoid(nets.dense(params, "gate", x))
    x = gate * x + (1 - gate) * nets.named("act1", jax.nn.relu, nets.dense(params, "dense1", x))
    return nets.cross_entropy(nets.dense(params, "head", x), batch["y"])


def _linen_unscaled() -> Run:
    import flax.linen as nn

    def attend(query: Any, key: Any, value: Any, **_: Any) -> Any:
        weights = jax.nn.softmax(10 * jnp.einsum("nthd,nshd->nhts", query, key))
        return jnp.einsum("nhts,nshd->nthd", weights, value)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(32)(x)
            for _ in range(2):
                x = x + nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attend)(nn.LayerNorm()(x))
                x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
            return nn.Dense(nets.CLASSES)(nn.LayerNorm()(x).mean(1))

    net: Any = Net()
    variables = jax.jit(net.init)(nets.key(), nets.tokens()["x"])
    return Run(lambda v, b: nets.cross_entropy(net.apply(v, b["x"]), b["y"]), variables, nets.tokens())


def _closed_lstm() -> Run:
    params = _lstm_params()
    for name in ("input", "forget"):
        params[name] = {**params[name], "bias": jnp.full(16, 20.0)}
    return Run(_lstm, params, nets.sequences(12))


def _after(loss: Callable[[Tree, Tree], Array], params: Tree, batch: Tree, rate: float) -> Run:
    return Run(loss, trained(loss, params, [batch], optax.sgd(rate), 20), batch)


def _healthy(name: str, loss: Any, params: Callable[[], Tree], batch: Callable[[int], Tree], **options: Any) -> Healthy:
    return Healthy(name, lambda: prepared(loss, params(), batch, **options))


def _points(seed: int) -> Tree:
    return nets.points(seed=seed)


def _tokens(_: int) -> Tree:
    return nets.tokens()


def _sequences(_: int) -> Tree:
    return nets.sequences(12)


HEALTHY = (
    _healthy("attention of one scope", _attention(_scaled, "attn"), nets.attention, _tokens),
    _healthy("attention of one scope, 50 steps", _attention(_scaled, "attn"), nets.attention, _tokens, steps=50),
    _healthy("attention without a scope, 50 steps", _attention(_scaled, None), nets.attention, _tokens, steps=50,
             rate=1e-2),
    _healthy("causal attention without a scope, 50 steps", _attention(_causal, None), nets.attention, _tokens,
             steps=50),
    _healthy("attention with capped scores", _attention(_capped, "attn"), nets.attention, _tokens, steps=50),
    _healthy("attention in a scan, bfloat16, 50 steps", _scanned(_scaled), _blocks, _tokens, steps=50,
             dtype=jnp.bfloat16),
    _healthy("LSTM of one scope", _lstm, _lstm_params, _sequences),
    _healthy("LSTM of one scope, 50 steps", _lstm, _lstm_params, _sequences, steps=50, rate=1e-2),
    _healthy("GRU with a loss in each step, 50 steps", _gru, _gru_params, _sequences, steps=50, rate=1e-1),
    Healthy("linen LSTM, 50 steps", lambda: _cell("OptimizedLSTMCell", steps=50, rate=1e-2)),
    Healthy("linen GRU, 50 steps", lambda: _cell("GRUCell", steps=50, rate=1e-2)),
    _healthy("GELU units of one scope, 50 steps", _of(_gelu), _units_params, _points, steps=50),
    _healthy("GELU units of large operands", _of(_gelu_of_large), _units_params, _points),
    _healthy("SiLU units of large operands, 50 steps", _of(_silu), _units_params, _points, steps=50),
    _healthy("sigmoid-gated units of one scope, 50 steps", _of(_sigmoid_unit), _gated_params, _points, steps=50),
    _healthy("decays close to 1, 50 steps", _decays, _decays_params, _sequences, steps=50),
)  # fmt: skip


def _fault(name: str, planted: str, layers: str, run: Callable[[], Run], rules: str = "saturated") -> Fault:
    return Fault(name, planted, tuple(rules.split("|")), layers, run)


FAULTS = (
    _fault("inner-attention", "scores of 64 features are not scaled, inside one scope", "attn",
           lambda: Run(_attention(_unscaled, "attn"), nets.attention(), nets.tokens())),
    _fault("unscoped-attention", "scores are not scaled, in a function without a scope", "query|key",
           lambda: Run(_attention(_unscaled, None), nets.attention(), nets.tokens())),
    _fault("unscoped-softmax", "scores are not scaled, and the softmax is written out", "query|key",
           lambda: Run(_attention(_written_out, None), nets.attention(), nets.tokens())),
    _fault("scanned-attention", "scores are not scaled in the blocks of a scan", r"block(?:\[\d\])?",
           lambda: Run(_scanned(_unscaled), _blocks(), nets.tokens())),
    _fault("linen-attention", "scores are multiplied by 10 in an attention function of Linen",
           r"MultiHeadDotProductAttention_\d", _linen_unscaled),
    _fault("unscoped-gate", "the bias of a gate is 30, and its sigmoid has no scope", "gate",
           lambda: Run(_highway, {**(p := {**nets.chain(2), "gate": nets.layer(50, (32, 32))}),
                                  "gate": {**p["gate"], "bias": jnp.full(32, 30.0)}}, nets.points())),
    _fault("inner-gates", "the biases of the gates of three blocks are -20", r"block\d",
           lambda: Run(_of(_sigmoid_unit), _gated_params(-20.0), nets.points())),
    _fault("inner-lstm", "the biases of an LSTM's input and forget gates are 20", r"cell(?:\[\d+\])?", _closed_lstm),
    _fault("inner-rate-tanh", "20 steps of SGD with rate 1 on tanh units of one scope", r"block\d|stem|head",
           lambda: _after(_squashed, _units_params(), nets.points(), 1.0), "saturated|exploding"),
)  # fmt: skip
