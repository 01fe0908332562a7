"""Rounding: what is zero but for rounding is no difference, what is not is one, and precision is inherited."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import compare
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.ports import flax_like, torch_like
from tests.support.ports.everything import CONVNET, VISION
from tests.support.ports.port import Port, captured
from tests.support.sampled import sampled

WIDTH, DEPTH = 32, 4


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(400 + seed).normal(size=shape).astype(np.float32)


def _weights() -> dict[str, dict[str, Any]]:
    return {
        f"layer{number}": {"kernel": _normal(number, WIDTH, WIDTH) / WIDTH**0.5, "bias": _normal(9 + number, WIDTH)}
        for number in range(DEPTH)
    }


def _network(dtype: Any, *, scale: float = 1.0, hidden: bool = False) -> Dump:
    """A network that computes in a dtype and stores float32; `scale` is a fault in its third layer."""
    batch = {"x": _normal(20, 16, WIDTH), "y": _normal(21, 16, WIDTH)}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in weights:
            with jax.named_scope(name):
                low = {key: value.astype(dtype) for key, value in weights[name].items()}
                x = jnp.tanh(flax_like.dense(low, x.astype(dtype)) * (scale if name == "layer2" else 1))
                x = x.astype(jnp.float32) if hidden else x
        return jnp.square(x.astype(jnp.float32) - batch["y"]).mean()

    return captured((loss, _weights(), batch))


@pytest.mark.slow
def test_a_candidate_in_bfloat16_with_float32_parameters_is_judged_by_bfloat16() -> None:
    reference = _network(jnp.float32)
    found = gs.compare(reference, _network(jnp.bfloat16))
    assert found, found.sentence
    gradients = [row for row in found.rows if row.family == "param_grad"]
    assert {row.tolerance for row in gradients} == {0.1}
    assert max(row.needed or 0.0 for row in gradients) > 5e-4, "float32 would be judged by this"
    faulty = gs.compare(reference, _network(jnp.bfloat16, scale=0.9))
    assert faulty.verdict == "different"
    assert faulty.first_divergence.forward is not None
    assert faulty.first_divergence.forward.name == "layer2"


def _normalised(dtype: Any, *, momentum: float = 0.9) -> Dump:
    """A layer, and the new mean of what it computes beside the loss; the mean is taken in float32."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("dense"):
            y = x.astype(dtype) @ weights["w"].astype(dtype)
        mean = y.astype(jnp.float32).mean(0, keepdims=True)
        return jnp.square(y.astype(jnp.float32) - mean).mean(), {"mean": (1 - momentum) * mean}

    draw = np.random.default_rng(11).normal
    weights = {"w": draw(size=(5, 3)).astype(np.float32)}
    return gs.capture(loss, weights, draw(size=(16, 5)).astype(np.float32), origins=False)


@pytest.mark.slow
def test_an_auxiliary_output_is_as_precise_as_what_it_may_be_computed_from() -> None:
    reference = _normalised(jnp.float32)
    found = gs.compare(reference, _normalised(jnp.bfloat16))
    assert found, found.sentence
    (row,) = (row for row in found.rows if row.family == "aux")
    assert row.tolerance == 0.02
    assert (row.needed or 0.0) > 1e-4, "float32 would be judged by this"
    assert not gs.compare(reference, _normalised(jnp.bfloat16, momentum=0.8))


def _with_state(dtype: Any, *, early: bool = False, frozen: bool, momentum: float = 0.9) -> Dump:
    """A layer that has the mean of what it computes as state, and a head, in a dtype the head alone or both."""

    def loss(variables: Any, x: Any) -> Any:
        weights, old = (variables["params"], variables["batch_stats"]) if frozen else (variables, variables)
        own = dtype if early else jnp.float32
        with jax.named_scope("norm"):
            y = x.astype(own) @ weights["norm"]["kernel"].astype(own)
            mean = y.mean(0)
            y = y - mean[None]
        with jax.named_scope("head"):
            y = jnp.tanh(y.astype(dtype) @ weights["head"].astype(dtype))
        new = momentum * jax.lax.stop_gradient(old["norm"]["mean"]) + (1 - momentum) * mean.astype(jnp.float32)
        return jnp.square(y.astype(jnp.float32)).mean(), {"norm": {"mean": new}}

    draw = np.random.default_rng(12).normal
    kernel, head = (draw(size=size).astype(np.float32) for size in ((5, 4), (4, 3)))
    mean = {"mean": np.ones(4, np.float32)}
    weights = {"norm": {"kernel": kernel, **({} if frozen else mean)}, "head": head}
    variables: Any = {"params": weights, "batch_stats": {"norm": mean}} if frozen else weights
    return gs.capture(loss, variables, draw(size=(16, 5)).astype(np.float32), has_aux=True, origins=False)


@sampled("frozen", [False, True], ids=["parameter", "state"])
def test_new_state_is_as_precise_as_the_layer_that_has_it(frozen: bool) -> None:
    reference = _with_state(jnp.float32, frozen=frozen)
    for early, tolerance in ((False, 1e-4), (True, 2e-2)):
        found = gs.compare(reference, _with_state(jnp.bfloat16, frozen=frozen, early=early))
        assert found, found.sentence
        (row,) = (row for row in found.rows if row.family == "aux")
        assert row.tolerance == tolerance
    assert not gs.compare(reference, _with_state(jnp.bfloat16, frozen=frozen, momentum=0.898))


@pytest.mark.slow
def test_a_precision_that_the_dump_does_not_show_is_said_by_hand() -> None:
    reference, hidden = _network(jnp.float32), _network(jnp.bfloat16, hidden=True)
    assert gs.compare(reference, hidden)  # its layers state what they compute in
    manifest = hidden.manifest
    layers = tuple(replace(layer, narrowest=None) for layer in manifest.layers)
    arrays = {key: hidden[key] for key in hidden.keys()}  # noqa: SIM118 - no mapping
    older = Dump(MemoryDump(replace(manifest, layers=layers), arrays))
    assert not gs.compare(reference, older)
    assert gs.compare(reference, older, cand_dtype="bfloat16")
    assert not gs.compare(reference, _network(jnp.bfloat16, hidden=True, scale=0.9), cand_dtype="bfloat16")


@cache
def _reference(port: Port) -> MemoryDump:
    source = captured(port.reference).source
    assert isinstance(source, MemoryDump)
    return source


def _scaled(source: MemoryDump, key: str, factor: float) -> MemoryDump:
    arrays: Mapping[str, Any] = {each: source.array(each) for each in source.keys() if source.has_tensor(each)}  # noqa: SIM118
    own = {each: array for each, array in arrays.items() if source.resolve(each) == each}
    entries = tuple(replace(entry, stats={}) for entry in source.manifest.entries)
    return MemoryDump(
        replace(source.manifest, entries=entries), {**own, key: (own[key] * np.float32(factor)).astype(np.float32)}
    )


#: The gradients of biases whose outputs are normalised over all positions, or within groups of two channels.
ZERO = {CONVNET: {"conv1/bias"}, VISION: {"blocks.1/fc2/bias", "stem/bias"}}


@pytest.mark.slow
@sampled("port", ZERO, ids=lambda port: port.name)
def test_an_error_of_a_thousandth_is_hidden_by_no_floor(port: Port) -> None:
    source = _reference(port)
    computed = ("activation", "activation_grad", "param_grad", "input_grad") if port is CONVNET else ("param_grad",)
    keys = [key for key in source.keys() if key.startswith(computed) and source.has_tensor(key)]  # noqa: SIM118
    hidden: set[str] = set()
    for key in (key for key in keys if source.resolve(key) == key):
        family, _, name = key.partition("/")
        options = CompareOptions(threads=1)
        rows = {
            (row.family, row.name): row for row in compare(source, _scaled(source, key, 1.001), options=options).rows
        }
        if rows[family, name].status == "same" and np.any(source.array(key)):
            hidden.add(name)
            assert "zero but for rounding" in rows[family, name].why
            assert "floor" in rows[family, name].metrics
    assert hidden == ZERO[port]


def test_a_gradient_that_is_zero_but_for_rounding_differs_where_it_is_larger() -> None:
    source = _reference(CONVNET)
    moved = _scaled(source, "param_grad/conv1/bias", 1e4)
    (row,) = (row for row in compare(source, moved).rows if (row.family, row.name) == ("param_grad", "conv1/bias"))
    assert row.status == "different"


def test_signs_that_flip_are_reported_where_an_optimizer_would_act_on_them() -> None:
    source = _reference(CONVNET)
    found = compare(source, _scaled(source, "param_grad/conv1/bias", -1.0))
    (row,) = (row for row in found.rows if (row.family, row.name) == ("param_grad", "conv1/bias"))
    assert (row.status, row.metrics["flipped"]) == ("same", 1.0)
    assert "100 % of its signs flip" in row.why


@cache
def _attention(*, scanned: bool, checkpointed: bool = False) -> Dump:
    """Transformer blocks, all of them called `block`, scanned or written out."""

    def parameters(number: int) -> dict[str, Any]:
        names = ("query", "key", "value")
        return {
            **{name: {"kernel": _normal(seed + 10 * number, 16, 16) / 4, "bias": _normal(seed, 16)}
               for seed, name in enumerate(names, 100)},
            "out": {"kernel": _normal(104 + 10 * number, 16, 16) / 4},
        }  # fmt: skip

    def block(weights: Any, x: Any) -> Any:
        with jax.named_scope("block"):
            return x + flax_like.attention(weights, x, 4)

    def loss(weights: Any, x: Any) -> Any:
        step = jax.checkpoint(block) if checkpointed else block
        if scanned:
            x, _ = jax.lax.scan(lambda carry, own: (step(own, carry), None), x, weights)
        else:
            for own in weights:
                x = step(own, x)
        return torch_like.cross_entropy(x[:, 0], jnp.arange(5))

    weights: Any = [parameters(number) for number in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *weights)
    return captured((loss, stacked if scanned else weights, _normal(130, 5, 12, 16)))


@pytest.mark.slow
@sampled("checkpointed", [False, True])
def test_a_scanned_transformer_is_the_same_as_its_blocks_written_out(*, checkpointed: bool) -> None:
    flat, loop = _attention(scanned=False), _attention(scanned=True, checkpointed=checkpointed)
    for pair in ((flat, loop), (loop, flat)):
        found = gs.compare(*pair)
        assert found, found.sentence
        keys = {row.name: row for row in found.rows if row.family == "param_grad" and row.name.endswith("key/bias")}
        assert all(row.status == "same" for row in keys.values())
        counterparts = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
        expected = ("block[1]", "block#2") if pair[0] is loop else ("block#2", "block[1]")
        assert counterparts[expected[0]] == expected[1]


@cache
def _biased_keys(*, scopes: bool, packed: bool = False) -> Dump:
    """An attention whose keys have a bias, to which no softmax gives a gradient; with scopes inside or without any."""
    names = ("query", "key", "value")
    kernels = {name: _normal(number, 8, 8) / 3 for number, name in enumerate((*names, "head"), 50)}
    biases = {name: _normal(number, 8) for number, name in enumerate(names, 60)}
    weights: Any = {"kernel": kernels, "bias": biases}
    if packed:
        weights = {"kernel": {"projection": np.concatenate([kernels[name] for name in names], 1)}}
        weights["kernel"]["head"] = kernels["head"]
        weights["bias"] = {"projection": np.concatenate([biases[name] for name in names])}

    def scope(name: str) -> Any:
        return jax.named_scope(name) if scopes else nullcontext()

    def projected(weights: Any, name: str, x: Any) -> Any:
        with scope(name):
            return x @ weights["kernel"][name] + weights["bias"][name]

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        if packed:
            query, key, value = jnp.split(projected(weights, "projection", x), 3, -1)
        else:
            query, key, value = (projected(weights, name, x) for name in names)
        # The order in which a port adds is another.
        query, key = (query, key) if scopes else (query[..., ::-1], key[..., ::-1])
        shares = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key))
        with jax.named_scope("head"):
            return jnp.square(shares @ value @ weights["kernel"]["head"]).mean()

    return captured((loss, weights, {"x": _normal(70, 6, 9, 8)}))


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_zero_but_for_rounding_is_told_by_the_program_that_has_scopes_around_it(packed: bool) -> None:
    found = gs.compare(_biased_keys(scopes=False), _biased_keys(scopes=True, packed=packed), allow_missing=[".*"])
    (row,) = (row for row in found.rows if (row.family, row.name) == ("param_grad", "bias/key"))
    assert row.status == "same", row.why
    assert row.why.startswith("zero but for rounding"), row.why


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 3e5])
def test_statistics_alone_tell_what_is_zero_but_for_rounding(factor: float) -> None:
    """Two gradients are no further apart than both are long; one that is more than rounding is a difference."""
    reference, candidate = _biased_keys(scopes=True), _biased_keys(scopes=False)
    entries = tuple(
        replace(each, stats={**each.stats, "l2": factor * as_float(each.stats["l2"]), "hash": None})
        if (each.family, each.name) == ("param_grad", "bias/key")
        else each
        for each in candidate.source.manifest.entries
    )
    found = compare(reference.source, MemoryDump(replace(candidate.source.manifest, entries=entries), {}))
    (row,) = (row for row in found.rows if (row.family, row.name) == ("param_grad", "bias/key"))
    assert row.status == ("same" if factor == 1 else "different"), row.why
    if factor == 1:
        assert row.why.startswith("zero but for rounding: the difference of at most"), row.why


@pytest.mark.slow
def test_gradients_of_operations_that_broadcast_are_zero_but_for_rounding() -> None:
    """That of a mean inside a variance, what operations make of it, and that of the maximum in a log-softmax."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("norm"):
            z = batch @ weights
            z = (z - z.mean(0)[None]) / jnp.sqrt(z.var(0)[None] + 1e-3)
        with jax.named_scope("loss"):
            return -jax.nn.log_softmax(z)[:, 3].mean()

    weights, batch = _normal(30, 16, 300), _normal(31, 64, 16)
    reference = gs.capture(loss, weights, batch, ops=True)
    found = gs.compare(reference, gs.capture(loss, weights, batch * (1 + 1e-7 * _normal(32, 64, 16)), ops=True))
    assert found, found.sentence
    rounded = {row.name for row in found.rows if row.why.startswith("zero but for rounding")}
    assert rounded >= {"loss/stop_gradient", "norm/div#2", "norm/broadcast_in_dim#2", "norm/reduce_sum#2"}
    doubled = gs.capture(lambda w, x: loss(w, x) + 1e-3 * w.sum(), weights, batch, ops=True)
    assert not gs.compare(reference, doubled)


def _cut_at(loss: Any, weights: Any, batch: Any) -> Dump:
    """A program in which a gradient is lost at one element whose value is not zero."""
    kept = np.ones(batch.shape, np.bool_)
    kept[3, 8] = False
    rectified = jnp.maximum

    def maximum(value: Any, floor: float) -> Any:
        return rectified(jnp.where(kept, value, jax.lax.stop_gradient(value)), floor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jnp, "maximum", maximum)
        return gs.capture(loss, weights, batch, ops=True)


def test_a_gradient_over_a_users_tolerance_where_rounding_decides_a_rectifier_says_so() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("rectified"):
            h = jnp.maximum(batch * weights["scale"], 0)
        return (h * weights["out"]).sum()

    weights = {"scale": np.ones((1, 400), np.float32), "out": _normal(40, 1, 400)}
    batch = np.abs(_normal(41, 8, 400)) + 0.1
    batch[2, 7] = 1e-9
    moved = batch.copy()
    moved[2, 7] = -1e-9
    dumps = [gs.capture(loss, weights, each, ops=True) for each in (batch, moved)]
    found = gs.compare(*dumps, tol=5e-4)
    assert (
        "it differs only in 1 element of 3,200, where rounding decides on which side of a kink its value is"
        in found.sentence
    )
    assert found.sentence.endswith("A reference made with `gradscope calibrate` would tell whether that is noise.")
    assert gs.compare(*dumps)
    cut = gs.compare(gs.capture(loss, weights, batch, ops=True), _cut_at(loss, weights, batch))
    assert not cut
    assert "kink" not in cut.sentence


@cache
def _shifted(*, noise: float = 0.0, wrong: float = 0.0) -> Dump:
    """A sum of products with numbers that cancel, with noise on its gradient, or an error in that of the bias alone."""
    draw = np.random.default_rng(12).normal
    x, kernel, factors = (draw(size=size).astype(np.float32) for size in ((8, 3), (3, 4), (8, 4)))
    factors -= factors.mean(0)
    random = (1 + noise * draw(size=(8, 4))).astype(np.float32)

    @jax.custom_vjp
    def passed(bias: Any) -> Any:
        return bias

    passed.defvjp(lambda bias: (bias, None), lambda _, gradient: (gradient + wrong,))

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("dense"):
            y = x @ weights["kernel"] + passed(weights["bias"])[None]
        return (y * factors * random).sum()

    return gs.capture(loss, {"kernel": kernel, "bias": np.ones(4, np.float32)}, x, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "wrong"), [(1e-5, 0.0), (1e-2, 0.0), (0.0, 1e-3)])
def test_a_bias_gradient_that_is_zero_may_be_apart_by_what_is_summed_in_it(noise: float, wrong: float) -> None:
    found = gs.compare(_shifted(), _shifted(noise=noise, wrong=wrong))
    assert found.verdict == ("same" if noise == 1e-5 else "different"), found.sentence
