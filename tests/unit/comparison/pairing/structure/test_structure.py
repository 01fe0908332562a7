"""Layers in the same place of two programs are paired where one is packed, or reads the weight of another layer."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison
from tests.support.data import drawn

_draw = np.random.default_rng(7).normal
QKV = [_draw(size=(6, 6)).astype(np.float32) for _ in range(3)]
HEAD = _draw(size=(6, 2)).astype(np.float32)
X = _draw(size=(2, 5, 6)).astype(np.float32)


@cache
def _attention(*, packed: bool, scale: float = 1.0) -> Dump:
    """Attention of one head, its projections by one layer or by three; the value is scaled where it is made."""
    names = ("attn/qkv", "out") if packed else ("query", "key", "value", "Dense_0")
    kernels = [np.concatenate(QKV, axis=1), HEAD] if packed else [np.ascontiguousarray(w.T) for w in (*QKV, HEAD)]

    def loss(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("attn"), jax.named_scope("qkv"):
                q, k, v = jnp.split(x @ weights["attn/qkv"], 3, axis=-1)
                x = jnp.concatenate([q, k, scale * v], axis=-1)
            q, k, v = jnp.split(x, 3, axis=-1)
        else:
            made: list[Any] = []
            for name in ("query", "key", "value"):
                with jax.named_scope(name):
                    made.append(x @ weights[name].T * (scale if name == "value" else 1.0))
            q, k, v = made
        x = jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v
        with jax.named_scope(names[-1]):
            x = jnp.tanh(x @ (weights["out"] if packed else weights["Dense_0"].T))
        return jnp.square(x).mean()

    return gs.capture(loss, dict(zip(names, kernels, strict=True)), X, origins=False)


def _says(found: Comparison, name: str) -> None:
    assert found.sentence.startswith(f"Forward first differs at `{name}`"), found.sentence


@pytest.mark.slow
def test_the_output_of_a_packed_layer_is_compared_with_those_of_its_parts() -> None:
    packed, apart = _attention(packed=True), _attention(packed=False)
    wrong, wrong_packed = _attention(packed=False, scale=1.5), _attention(packed=True, scale=1.5)
    for reference, candidate in ((packed, apart), (apart, packed)):
        found = gs.compare(reference, candidate)
        assert found.verdict == "same"
        compared = {row.name for row in found.rows if row.family == "activation" and row.compared}
        assert compared >= ({"attn/qkv"} if reference is packed else {"query", "key", "value"})
    _says(gs.compare(packed, wrong), "attn/qkv")
    _says(gs.compare(apart, wrong_packed), "value")


GROUPED = [_draw(size=(6, size)).astype(np.float32) for size in (4, 2, 2)]


@cache
def _grouped(*, packed: bool, scale: float = 1.0) -> Dump:
    """Queries that share keys and values, by one layer or by three; the values are scaled where they are made."""
    names = ("query", "key", "value")

    def loss(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("qkv"):
                made = jnp.split(x @ weights["qkv"], [4, 6], axis=-1)
                x = jnp.concatenate([*made[:2], scale * made[2]], axis=-1)
            q, k, v = jnp.split(x, [4, 6], axis=-1)
        else:
            made = []
            for name in names:
                with jax.named_scope(name):
                    made.append(x @ weights[name].T * (scale if name == "value" else 1.0))
            q, k, v = made
        q = q.reshape(*q.shape[:2], 2, 2)
        scores = jnp.einsum("bqhd,bkd->bhqk", q, k)
        x = jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(scores), v).reshape(*x.shape[:2], 4)
        with jax.named_scope("out" if packed else "o_proj"):
            x = jnp.tanh(x @ weights["out" if packed else "o_proj"])
        return jnp.square(x).mean()

    apart = {name: np.ascontiguousarray(kernel.T) for name, kernel in zip(names, GROUPED, strict=True)}
    weights = {"qkv": np.concatenate(GROUPED, axis=1), "out": HEAD[:4]} if packed else {**apart, "o_proj": HEAD[:4]}
    return gs.capture(loss, weights, X, origins=False)


@pytest.mark.slow
def test_the_parts_of_a_packed_layer_may_have_several_sizes() -> None:
    packed, apart = _grouped(packed=True), _grouped(packed=False)
    for reference, candidate in ((packed, apart), (apart, packed)):
        found = gs.compare(reference, candidate)
        assert found.verdict == "same"
        compared = {row.name for row in found.rows if row.family == "activation" and row.compared}
        assert compared >= ({"qkv"} if reference is packed else {"query", "key", "value"})
    _says(gs.compare(packed, _grouped(packed=False, scale=1.5)), "qkv")
    _says(gs.compare(apart, _grouped(packed=True, scale=1.5)), "value")


@cache
def _headed(*, packed: bool, fault: str = "") -> Dump:
    """Attention of two heads, whose projections have an axis for the heads, or are packed without one."""

    def loss(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("qkv"):
                parts = (x @ weights["qkv"]).reshape(*x.shape[:2], 3, 2, 3)
            q, k, v = (parts[:, :, n] for n in range(3))
        else:
            made: list[Any] = []
            for name in ("query", "key", "value"):
                with jax.named_scope(name):
                    made.append(jnp.einsum("btf,fhd->bthd", x, weights[name]))
            q, k, v = made
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (2.0 if fault == "scores" else 1.0)
        with jax.named_scope("shares") if not packed else nullcontext():
            shares = jax.nn.softmax(scores)
        if fault == "stopped":
            shares = jax.lax.stop_gradient(shares)
        with jax.named_scope("mix") if not packed else nullcontext():
            x = jnp.einsum("bhqk,bkhd->bhqd" if fault == "merged" else "bhqk,bkhd->bqhd", shares, v)
        with jax.named_scope("out" if packed else "o_proj"):
            out = weights["out" if packed else "o_proj"]
            x = x.reshape(2, 5, 6) @ out if packed else jnp.einsum("bqhd,hdw->bqw", x, out)
        return jnp.square(x).mean()

    apart = {name: kernel.reshape(6, 2, 3) for name, kernel in zip(("query", "key", "value"), QKV, strict=True)}
    weights = {"qkv": np.concatenate(QKV, axis=1), "out": HEAD}
    return gs.capture(loss, weights if packed else {**apart, "o_proj": HEAD.reshape(2, 3, 2)}, X, origins=False)


def test_the_parts_of_a_packed_layer_may_have_an_axis_for_heads() -> None:
    packed, apart = _headed(packed=True), _headed(packed=False)
    for reference, candidate in ((packed, apart), (apart, packed)):
        found = gs.compare(reference, candidate)
        assert found.verdict == "same"
        compared = {row.name for row in found.rows if row.family == "activation" and row.compared}
        assert compared >= ({"qkv"} if reference is packed else {"query", "key", "value"})
    _says(gs.compare(apart, _headed(packed=True, fault="scores")), "shares")
    # Both layers read their values, and the same gradients arrive but for those of the weights.
    stopped = gs.compare(apart, _headed(packed=True, fault="stopped"))
    assert stopped.blame.suspects[0].name == "shares", stopped.sentence
    # The axis for the heads is merged in another order, where the layer behind reads it.
    _says(gs.compare(apart, _headed(packed=True, fault="merged")), "o_proj")


@cache
def _coded(*, packed: bool, slope: float = 1.0) -> Dump:
    """Two layers that read a flattened image, channels first where they are packed into one."""
    image, (mean, deviation) = _draw_image(), (_draw_code(seed) for seed in (1, 2))
    rows = np.arange(12).reshape(2, 2, 3).transpose(2, 0, 1).reshape(-1)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("stem"):
            x = jnp.sin(batch["x"]) * slope
        x = x.reshape(4, -1)
        if packed:
            with jax.named_scope("code"):
                one, other = jnp.split(x @ weights["code"].T, 2, axis=-1)
        else:
            with jax.named_scope("mean"):
                one = x @ weights["mean"]
            with jax.named_scope("deviation"):
                other = x @ weights["deviation"]
        return (one * jnp.exp(other / 9)).mean()

    own = {"code": np.concatenate([mean[rows].T, deviation[rows].T])} if packed else {"mean": mean}
    own |= {} if packed else {"deviation": deviation}
    x = image.transpose(0, 3, 1, 2) if packed else image
    return gs.capture(loss, own, {"x": np.ascontiguousarray(x)}, origins=False)


def _draw_image() -> Any:
    return np.random.default_rng(3).normal(size=(4, 2, 2, 3)).astype(np.float32)


def _draw_code(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(12, 5)).astype(np.float32)


@pytest.mark.slow
def test_packed_layers_may_read_a_flattened_image_in_another_order() -> None:
    packed, apart = _coded(packed=True), _coded(packed=False)
    for reference, candidate in ((packed, apart), (apart, packed)):
        found = gs.compare(reference, candidate)
        assert found.verdict == "same", found.sentence
    _says(gs.compare(apart, _coded(packed=True, slope=1.5)), "stem")


BLOCKS = ("up", "pool", "down", "head")
PORTED = ("first", "squeeze", "second", "third")


@cache
def _blocks(names: tuple[str, ...], *, wrong: str = "") -> Dump:
    """Three layers, with a pool behind the first; one thing is wrong."""
    up, pool, down, head = names
    weights = {up: QKV[0], down: QKV[1], head: HEAD}

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(up):
            x = jnp.tanh(x @ weights[down if wrong == "weight" else up])
        with jax.named_scope(pool):
            x = x.max(1) if wrong == "pool" else x.sum(1) / x.shape[1]
        with jax.named_scope(down):
            x = jnp.sin(x @ weights[down])
        with jax.named_scope(head):
            x = x @ weights[head]
        return jnp.square(x).mean()

    return gs.capture(loss, weights, X, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "first"), [("", ""), ("weight", "up"), ("pool", "pool")])
def test_layers_with_the_same_inputs_are_paired(wrong: str, first: str) -> None:
    found = gs.compare(_blocks(BLOCKS), _blocks(PORTED, wrong=wrong))
    assert found.verdict == ("different" if wrong else "same")
    if wrong:
        _says(found, first)


@cache
def _halves(*, packed: bool, fault: bool = False) -> Dump:
    """A layer with two outputs, of which the loss reads one alone."""
    one, other = QKV[:2]

    def loss(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("both"):
                y = x @ weights["both"]
            first, second = jnp.split(y, 2, axis=-1)
        else:
            with jax.named_scope("first"):
                first = x @ weights["first"].T
            with jax.named_scope("second"):
                second = x @ weights["second"].T
        x = jnp.tanh(second) + (0.5 * first if fault else 0.0 * jax.lax.stop_gradient(first))
        with jax.named_scope("head" if packed else "out"):
            return jnp.square(x @ (weights["head"] if packed else weights["out"])).mean()

    apart = {"first": np.ascontiguousarray(one.T), "second": np.ascontiguousarray(other.T), "out": HEAD}
    weights = {"both": np.concatenate([one, other], axis=1), "head": HEAD} if packed else apart
    return gs.capture(loss, weights, X, origins=False)


@pytest.mark.slow
def test_the_gradient_of_a_packed_kernel_of_which_a_part_is_not_trained_has_zeros_there() -> None:
    packed, apart = _halves(packed=True), _halves(packed=False)
    for reference, candidate in ((packed, apart), (apart, packed)):
        found = gs.compare(reference, candidate)
        assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.counts]
        assert any(row.family == "param_grad" and row.compared and row.name != "head" for row in found.rows)
        wrong = _halves(packed=candidate is packed, fault=True)
        assert gs.compare(reference, wrong).verdict == "different"


@cache
def _rooted(scale: float = 1.0) -> Dump:
    """Two roots in a loss: one in a loop that calls a method of itself, and one with an activation function."""
    weights = {"fc": QKV[0], "mix": QKV[1], "out": HEAD}

    def step(x: Any, _: Any) -> Any:
        with jax.named_scope("Net"):
            with jax.named_scope("Net.mixed"), jax.named_scope("mix"):
                x = jnp.sin(scale * (x @ weights["mix"]))
            with jax.named_scope("fc"):
                x = x @ weights["fc"]
            return jnp.cos(x), None

    def loss(params: Any, x: Any) -> Any:
        weights.update(params)
        x, _ = jax.lax.scan(step, x, length=2)
        with jax.named_scope("Head"):
            with jax.named_scope("out"):
                x = x @ params["out"]
            with jax.named_scope("tanh"):
                x = jnp.tanh(x)
        return jnp.square(x).mean()

    return gs.capture(loss, weights, X, ops=True, origins=False)


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_dump_that_states_the_roots_is_paired_with_one_that_leaves_them_out(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    stated = _rooted()
    monkeypatch.setattr("gradscope.tracing.layers.root_names.is_in_module", lambda _: True)
    shorter = _rooted(scale)
    assert {"activation/fc[1]", "activation/mix[0]/sin", "activation/tanh", "activation/Net[1]/cos"} <= set(shorter)
    assert {"activation/Net[1]/fc", "activation/Net[0]/Net.mixed/mix/sin", "activation/Head/tanh"} <= set(stated)
    for reference, candidate in ((stated, shorter), (shorter, stated)):
        found = gs.compare(reference, candidate)
        assert found.verdict == ("same" if scale == 1 else "different")
        assert {row.matched_by for row in found.rows} == {"name", "path"}
        pairs = [(row.name, row.counterpart) for row in found.rows if row.counterpart]
        assert len(pairs) > 30
        for pair in pairs:
            one, other = (
                re.sub(r"\[\d\]", "", name).removeprefix("Head/").rpartition("Net.mixed/")[2] for name in pair
            )
            assert one.removeprefix("Net/") == other.removeprefix("Net/")


@pytest.mark.slow
@pytest.mark.parametrize("stats_only", [False, True])
def test_a_root_that_returns_what_its_last_layer_does_may_have_another_name(
    monkeypatch: pytest.MonkeyPatch, stats_only: bool
) -> None:
    monkeypatch.setattr("gradscope.tracing.layers.root_names.is_in_module", lambda _: True)

    def captured(root: str) -> Any:
        def loss(params: Any, x: Any) -> Any:
            with jax.named_scope(root), jax.named_scope("head"):
                x = x @ params["head"]
            return jnp.square(x).mean()

        return gs.capture(loss, {"head": jnp.ones((3, 2))}, jnp.ones((4, 3)), stats_only=stats_only, origins=False)

    found = gs.compare(captured("MyNet"), captured("OurNet"))
    assert found.verdict == "same", found.sentence
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation"}
    assert pairs.items() >= {"MyNet": "OurNet"}.items()


@cache
def _repeated(*, scanned: bool, fault: bool = False) -> Dump:
    """Three blocks of two dense layers, of which one program has the kernels stacked, for the iterations of a loop."""
    draw = np.random.default_rng(3).normal
    kernels = {name: draw(size=(3, 6, 6)).astype(np.float32) / 3 for name in ("first", "second")}

    def block(x: Any, weights: Any, first: str, second: str) -> Any:
        with jax.named_scope(first):
            y = jnp.tanh(x @ weights["first"])
        with jax.named_scope(second):
            y = y @ weights["second"]
            y = jnp.where(jnp.arange(6) % 2 == 0, y, -y) if fault else y
        return x + y

    def unrolled(weights: Any, x: Any) -> Any:
        for number, each in enumerate(weights):
            with jax.named_scope(f"blocks_{number}"):
                x = block(x, each, "in_proj", "out_proj")
        return jnp.square(x).mean()

    def loop(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, each: (block(x, each, "mix", "project"), None), x, weights)
        return jnp.square(x).mean()

    apart = [{name: kernel[number] for name, kernel in kernels.items()} for number in range(3)]
    return gs.capture(loop, kernels, X, origins=False) if scanned else gs.capture(unrolled, apart, X, origins=False)


@pytest.mark.slow
def test_an_iteration_uses_its_slice_of_stacked_parameters() -> None:
    apart, scanned = _repeated(scanned=False), _repeated(scanned=True)
    assert gs.compare(apart, scanned).verdict == gs.compare(scanned, apart).verdict == "same"
    _says(gs.compare(apart, _repeated(scanned=True, fault=True)), "blocks_0/out_proj")
    _says(gs.compare(scanned, _repeated(scanned=False, fault=True)), "project[0]")


@cache
def _shortcut(*, of_port: bool) -> Dump:
    """A block with a shortcut, which the port computes and leaves out of the sum; only the port has a scope around."""
    sizes = {"inner/w": (6, 6), "norm/a": (6,), "norm/b": (6,), "short/w": (6, 6), "shift/a": (6,), "shift/b": (6,)}
    draw = np.random.default_rng(5).normal
    params = {name: draw(size=size).astype(np.float32) for name, size in sizes.items()} | {"head/w": HEAD}
    # The port's names say nothing.
    names = {name: f"p{at}" if of_port else name for at, name in enumerate(params)}

    def loss(weights: Any, x: Any) -> Any:
        own = {name: weights[names[name]] for name in params}
        with jax.named_scope("trunk" if of_port else ""):
            with jax.named_scope("a" if of_port else "inner"):
                y = x.reshape(10, 6) @ own["inner/w"]
            with jax.named_scope("b" if of_port else "norm"):
                y = jnp.tanh(y) * own["norm/a"][None] + own["norm/b"][None]
            with jax.named_scope("c" if of_port else "short"):
                short = x.reshape(10, 6) @ own["short/w"]
            with jax.named_scope("d" if of_port else "shift"):
                short = jnp.sin(short) * own["shift/a"][None] + own["shift/b"][None]
            with nullcontext() if of_port else jax.named_scope("sum"):
                y = jax.nn.relu(y) if of_port else jnp.maximum(y + short, 0)
        with jax.named_scope("e" if of_port else "head"):
            return jnp.square(y @ own["head/w"]).mean()

    return gs.capture(loss, {names[name]: each for name, each in params.items()}, X, origins=False)


@pytest.mark.slow
def test_a_shortcut_that_is_left_out_of_a_sum_is_not_taken_for_the_sum() -> None:
    found = gs.compare(_shortcut(of_port=False), _shortcut(of_port=True))
    _says(found, "sum")
    told = "it is the relu of `norm` + `shift` in the reference, and the relu of `norm` in the candidate"
    assert told in found.sentence, found.sentence


@cache
def _stack(*, of_port: bool, fault: bool = False) -> Dump:
    """Returns the dump of three layers that gate a value, in which nothing reads a product of a kernel as it is."""
    block, gate, out = ("layer_{}", "gate_proj", "out_proj") if of_port else ("blocks/{}", "g", "o")
    used = [0, 2, 1] if fault else [0, 1, 2]

    def loss(weights: Any, x: Any) -> Any:
        for number in range(3):
            with jax.named_scope(block.format(number)):
                with jax.named_scope(gate):
                    gated = x @ weights[gate][used[number]]
                x = jnp.cos(gated) + 0.1 * jnp.sin(x)
                with jax.named_scope(out):
                    x = x @ weights[out][number]
        return jnp.square(x).mean()

    weights = {
        gate: [drawn(number, 6, 6) for number in range(3)],
        out: [drawn(9 + number, 6, 6) for number in range(3)],
    }
    return gs.capture(loss, weights, drawn(5, 4, 6))


@pytest.mark.slow
def test_a_layer_with_the_weights_of_another_one_is_known_by_the_names_that_other_layers_have() -> None:
    reference = _stack(of_port=False)
    assert gs.compare(reference, _stack(of_port=True)).verdict == "same"
    found = gs.compare(reference, _stack(of_port=True, fault=True))
    first = found.first_divergence.forward
    assert first is not None
    assert (first.name, first.counterpart) == ("blocks/1/g", "layer_1/gate_proj")
    assert "it multiplies by `g/2`" in found.sentence


@cache
def _branches(*, of_port: bool, offset: float = 1.0) -> Dump:
    """Returns the dump of a residual block whose shortcut is computed before or after its branch."""
    names = ("block", "norm", "gain", "conv", "short")
    others = ("Block_0", "Norm_0", "Dense_0", "Dense_1", "Dense_2")

    def loss(weights: Any, x: Any) -> Any:
        block, norm, gain, conv, short = (jax.named_scope(each) for each in (others if of_port else names))
        with block:
            with norm:
                branch = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True)) * weights["norm"]
            with gain:
                scale = jnp.tanh(x.mean(1, keepdims=True)) @ weights["gain"]
            kept = x
            if not of_port:
                with short:
                    kept = x @ weights["short"]
            branch = jnp.sin(branch * (offset + scale))
            with conv:
                branch = branch @ weights["conv"]
            if of_port:
                with short:
                    kept = x @ weights["short"]
            x = kept + branch
        return jnp.square(x).mean()

    weights = {"norm": 1 + drawn(1, 1, 1, 6), "gain": drawn(2, 6, 6), "conv": drawn(3, 6, 6), "short": drawn(4, 6, 6)}
    return gs.capture(loss, weights, X, origins=False)


@pytest.mark.slow
def test_layers_are_paired_by_their_parameters_where_the_programs_run_branches_in_another_order() -> None:
    reference = _branches(of_port=False)
    assert gs.compare(reference, _branches(of_port=True)).verdict == "same"
    found = gs.compare(reference, _branches(of_port=True, offset=0.0))
    _says(found, "block/conv")
    assert not [each for each in found.rows if each.status in ("missing", "extra")]


def _two_towers(*, of_port: bool, right: str = "right") -> Dump:
    """Returns the dump of a layer that multiplies two projections, or of a program with a layer for each of them."""

    kernels = {"left": "Dense_0", "right": "Dense_1"} if of_port else {"left": "left", "right": "right"}

    def loss(weights: Any, batch: Any) -> Any:
        def tower(name: str, kernel: str) -> Any:
            with jax.named_scope(name) if of_port else nullcontext():
                return batch[name] @ weights[kernels[kernel]]

        with nullcontext() if of_port else jax.named_scope("towers"):
            logits = jnp.exp(weights["scale"]) * tower("one", "left") @ tower("other", right).T
        return -jnp.diagonal(jax.nn.log_softmax(logits)).mean()

    weights = {kernels["left"]: drawn(1, 5, 6), kernels["right"]: drawn(2, 5, 6), "scale": drawn(5, 1, 1)}
    return gs.capture(loss, weights, {"one": drawn(3, 4, 5), "other": drawn(4, 4, 5)}, origins=False)


@pytest.mark.slow
def test_a_layer_of_several_parameters_is_none_of_one_of_them_that_returns_another_shape() -> None:
    reference = _two_towers(of_port=False)
    assert gs.compare(reference, _two_towers(of_port=True)).verdict == "same"
    found = gs.compare(reference, _two_towers(of_port=True, right="left"))
    assert found.verdict == "different"
    assert "the shape is" not in found.sentence, found.sentence
