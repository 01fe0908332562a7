"""One parameter for several: joined along an axis, stacked in two, or added up; by values, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.ports import torch_like
from tests.support.ports.port import captured
from tests.support.sampled import sampled

_draw = np.random.default_rng(21).normal
X = {"x": _draw(size=(4, 8)).astype(np.float32)}
QUERY, KEY, VALUE = (_draw(size=(8, width)).astype(np.float32) for width in (8, 4, 4))


def _attention(*, transposed: bool, packed: bool) -> Any:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("attention"):
            own = {name: value.T if transposed else value for name, value in weights["attention"].items()}
            if packed:
                query, key, value = jnp.split(batch["x"] @ own["qkv"], [8, 12], axis=1)
            else:
                query, key, value = (batch["x"] @ own[name] for name in ("q", "k", "v"))
            mixed = jnp.tanh(query) + jnp.concatenate([key, value], 1)
        return jnp.square(mixed).mean()

    return loss


def _apart(**changes: Any) -> Dump:
    weights = {"attention": {"q": QUERY, "k": KEY, "v": VALUE} | changes}
    return captured((_attention(transposed=False, packed=False), weights, X))


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
def test_queries_that_share_keys_and_values_are_paired_with_their_packed_kernel(transposed: bool) -> None:
    joined = np.concatenate([QUERY, KEY, VALUE], axis=1)
    weights = {"attention": {"qkv": np.ascontiguousarray(joined.T) if transposed else joined}}
    packed = captured((_attention(transposed=transposed, packed=True), weights, X))
    for one, other in ((packed, _apart()), (_apart(), packed)):
        found = gs.compare(one, other)
        assert found, found.sentence
        assert {row.status for row in found.rows} == {"same"}
    # A part that is not in it leaves all of them without a counterpart, and what their shapes suggest is told.
    found = gs.compare(packed, _apart(k=KEY * 1.01))
    assert not found
    parts = "`attention/k` and `attention/q` and `attention/v`"
    assert _likely(found) == {
        "attention/qkv": f"has the shape of {parts} joined, and other values",
        **dict.fromkeys(("attention/q", "attention/k", "attention/v"), "may be a part of `attention/qkv`"),
    }


def _likely(found: gs.Comparison) -> dict[str, str]:
    return {row.name: row.likely for row in found.rows if row.family == "param" and row.likely}


def _biased(biases: Mapping[str, Any]) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("layer"):
            summed = sum(weights["layer"][name] for name in biases)
            return jnp.tanh(batch["x"] @ weights["layer"]["w"] + summed).sum()

    return captured((loss, {"layer": {"w": QUERY, **biases}}, X))


@pytest.mark.slow
def test_two_biases_are_one_where_they_add_up_to_it() -> None:
    one, two, third = (_draw(size=8).astype(np.float32) for _ in range(3))
    apart = _biased({"b_ih": one, "b_hh": two})
    for pair in ((apart, _biased({"b": one + two})), (_biased({"b": one + two}), apart)):
        found = gs.compare(*pair)
        assert found, found.sentence
        reasons = {row.name: row.why for row in found.rows if row.family == "param" and not row.counts}
        assert reasons == {
            "layer/b": "the sum of layer/b_hh and layer/b_ih",
            "layer/b_hh": "layer/b is the sum of layer/b_hh and layer/b_ih",
            "layer/b_ih": "layer/b is the sum of layer/b_hh and layer/b_ih",
        }
    found = gs.compare(apart, _biased({"b": one + third}))
    assert not found
    assert _likely(found) == {
        "layer/b": "has the shape of `layer/b_hh` and `layer/b_ih` added up, and other values",
        **dict.fromkeys(("layer/b_hh", "layer/b_ih"), "may be a part of `layer/b`"),
    }
    # The sum is right, and what is computed from it is not.
    wrong = gs.compare(apart, _biased({"b": one + two, "c": np.full(8, 0.1, np.float32)}))
    assert not wrong
    assert wrong.first_divergence.forward is not None


def _gated(*names: str, **biases: Any) -> Dump:
    """A layer of four gates, each with a bias of its own, or with parts of joined ones."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("layer"):
            own = weights["layer"]
            joined = sum(own[name] for name in biases) if not names else jnp.concatenate([own[name] for name in names])
            gates = jnp.split(batch["x"] @ own["w"] + joined, 4, axis=1)
            return (jnp.tanh(gates[0]) * gates[1] + jnp.sin(gates[2]) * gates[3]).sum()

    return captured((loss, {"layer": {"w": QUERY, **biases}}, X))


@pytest.mark.slow
def test_two_joined_biases_are_one_for_each_gate_where_they_add_up_to_them() -> None:
    one, two = (_draw(size=8).astype(np.float32) for _ in range(2))
    apart = _gated(b_ih=one, b_hh=two)
    gates = dict(zip(("bi", "bf", "bg", "bo"), np.split(one + two, 4), strict=True))
    for pair in ((apart, _gated(*gates, **gates)), (_gated(*gates, **gates), apart)):
        found = gs.compare(*pair)
        assert found, found.sentence
        reasons = {row.name: row.why for row in found.rows if row.family == "param" and not row.counts}
        assert reasons == {
            **{f"layer/{gate}": "a part of the sum of layer/b_hh and layer/b_ih" for gate in gates},
            **dict.fromkeys(
                ("layer/b_hh", "layer/b_ih"),
                "layer/bi and layer/bf and layer/bg and layer/bo joined are the sum of layer/b_hh and layer/b_ih",
            ),
        }
    assert not gs.compare(apart, _gated(*gates, **{**gates, "bg": gates["bg"] * 1.01}))


@sampled("factor", [1.0, 2.0])
def test_an_lstm_of_pytorch_is_the_same_as_one_with_a_single_bias(factor: float) -> None:
    """It is so, too, where the port scales the output in the scope of the LSTM, and PyTorch after it."""
    torch = pytest.importorskip("torch", reason="PyTorch is absent: its LSTM was NOT compared")
    from gradscope.frameworks.torch import capture

    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(6, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1] * factor)

    network, x = Network(), torch.randn(4, 3, 6)
    reference = capture(network, lambda y: y.square().mean(), {"x": x})
    own = {name: value.detach().numpy() for name, value in network.named_parameters()}
    weights = {
        "lstm": {
            "weight_ih": own["lstm.weight_ih_l0"], "weight_hh": own["lstm.weight_hh_l0"],
            "bias": own["lstm.bias_ih_l0"] + own["lstm.bias_hh_l0"],
        },
        "head": {"weight": own["head.weight"], "bias": own["head.bias"]},
    }  # fmt: skip

    def loss(scale: float) -> Any:
        def program(weights: Any, batch: Any) -> Any:
            with jax.named_scope("lstm"):
                h = torch_like.lstm(weights["lstm"], batch["x"]) * factor
            with jax.named_scope("head"):
                y = torch_like.linear(weights["head"], h) * scale
            return jnp.square(y).mean()

        return program

    found = gs.compare(reference, captured((loss(1.0), weights, {"x": x.numpy()})))
    assert found, found.sentence
    assert not gs.compare(reference, captured((loss(1.01), weights, {"x": x.numpy()})))


@cache
def _reset_gated(
    *,
    packed: bool,
    wrong: bool = False,
    zeros: bool = False,
    joined: bool = False,
    scale: float = 1.0,
    rows: bool = False,
    moved: bool = False,
) -> Dump:
    """One step of a GRU from two kernels: of PyTorch's two biases, Flax adds those of two gates.

    A port from Flax to PyTorch has zeros in one of the terms. Equinox joins the sums with the first term of the third.
    The scale is that of all biases. Keras has both terms as the rows of one parameter, with the gates in another order.
    A part of one term may be moved to the other.
    """
    draw = np.random.default_rng(4).normal
    inputs, carried = (draw(size=(8, 12)).astype(np.float32) for _ in range(2))
    biases = {name: draw(size=12).astype(np.float32) * np.float32(scale) for name in ("b_ih", "b_hh")}
    biases["b_hh"] *= np.repeat([not zeros, not zeros, True], 4)
    shift = np.repeat([0.5, -0.25, 0], 4).astype(np.float32)
    one, two = (np.split(each, 3) for each in biases.values())
    if moved:
        biases = {"b_ih": biases["b_ih"] - shift, "b_hh": biases["b_hh"] + shift}
    apart = {"r": one[0] + two[0], "z": one[1] + two[1], "n": one[2], "hn": two[2] + 0.1 * wrong}

    if joined:
        apart = {"bias": np.concatenate([apart["r"], apart["z"], apart["n"]]), "bias_n": apart["hn"]}

    if rows:
        own_order = (each.reshape(3, -1)[[1, 0, 2]].reshape(-1) for each in biases.values())
        biases = {"terms": np.stack([*own_order]) + np.float32(0.1 * wrong)}

    def loss(weights: Any, batch: Any) -> Any:
        own = weights["gru"]
        if rows:
            terms = own["terms"].reshape(2, 3, -1)[:, jnp.array([1, 0, 2])].reshape(2, -1)
            own = {**own, "b_ih": terms[0], "b_hh": terms[1]}
        if joined:
            own = {**own, **dict(zip("rzn", jnp.split(own["bias"], 3), strict=True)), "hn": own["bias_n"]}
        with jax.named_scope("gru"):
            r, z, n = jnp.split(batch["x"] @ own["ih"], 3, axis=1)
            hr, hz, hn = jnp.split(jnp.cos(batch["x"]) @ own["hh"], 3, axis=1)
            bias = [*jnp.split(own["b_ih"], 3), *jnp.split(own["b_hh"], 3)] if packed else None
            r_bias, z_bias = (bias[0] + bias[3], bias[1] + bias[4]) if bias else (own["r"], own["z"])
            n_bias, hn_bias = (bias[2], bias[5]) if bias else (own["n"], own["hn"])
            n = jnp.tanh(n + n_bias + jax.nn.sigmoid(r + hr + r_bias) * (hn + hn_bias))
            return jnp.square(n * jax.nn.sigmoid(z + hz + z_bias)).mean()

    return captured((loss, {"gru": {"ih": inputs, "hh": carried} | (biases if packed else apart)}, X))


@pytest.mark.slow
def test_biases_of_which_some_gates_add_both_are_one() -> None:
    packed = _reset_gated(packed=True)
    for one, other in ((packed, _reset_gated(packed=False)), (_reset_gated(packed=False), packed)):
        found = gs.compare(one, other)
        assert found, found.sentence
        reasons = {row.name: row.why for row in found.rows if row.family == "param" and row.status != "same"}
        assert reasons["gru/r"] == "a part of the sum of gru/b_hh and gru/b_ih"
        assert (reasons["gru/n"], reasons["gru/hn"]) == ("a part of gru/b_ih", "a part of gru/b_hh")
    assert not gs.compare(packed, _reset_gated(packed=False, wrong=True))


def test_biases_that_are_joined_otherwise_than_their_terms_are_one() -> None:
    packed, joined = _reset_gated(packed=True), _reset_gated(packed=False, joined=True)
    for one, other in ((packed, joined), (joined, packed)):
        found = gs.compare(one, other)
        assert found, found.sentence
        reasons = {row.name: row.why for row in found.rows if row.family == "param" and row.status != "same"}
        assert reasons["gru/bias"] == "a part of the sum of gru/b_hh and gru/b_ih"
        assert reasons["gru/bias_n"] == "a part of gru/b_hh"
    assert not gs.compare(packed, _reset_gated(packed=False, joined=True, wrong=True))


@pytest.mark.parametrize("joined", [False, True])
def test_both_terms_may_be_the_rows_of_one_parameter(joined: bool) -> None:
    rows, others = _reset_gated(packed=True, rows=True), [_reset_gated(packed=False, joined=joined)]
    others += [] if joined else [_reset_gated(packed=True, moved=True), _reset_gated(packed=True)]
    for other in others:
        for one, two in ((rows, other), (other, rows)):
            found = gs.compare(one, two)
            assert found, found.sentence
        assert not gs.compare(other, _reset_gated(packed=True, rows=True, wrong=True))


@pytest.mark.parametrize("joined", [False, True])
def test_rows_of_zeros_are_both_terms_where_their_gradients_show_it(joined: bool) -> None:
    rows, others = _reset_gated(packed=True, rows=True, scale=0), [_reset_gated(packed=False, scale=0, joined=joined)]
    others += [] if joined else [_reset_gated(packed=True, scale=0)]
    for other in others:
        for one, two in ((rows, other), (other, rows)):
            found = gs.compare(one, two)
            assert found, found.sentence


@pytest.mark.slow
def test_a_bias_that_is_zero_but_for_one_gate_is_the_bias_of_that_gate() -> None:
    packed, apart = _reset_gated(packed=True, zeros=True), _reset_gated(packed=False, zeros=True)
    for one, other in ((packed, apart), (apart, packed)):
        found = gs.compare(one, other)
        assert found, found.sentence
        reasons = {row.name: row.why for row in found.rows if row.family == "param" and row.status != "same"}
        assert reasons["gru/hn"] == "a part of gru/b_hh"
    for wrong in (_reset_gated(packed=False, zeros=True, wrong=True), _reset_gated(packed=False)):
        assert not gs.compare(packed, wrong)


@pytest.mark.parametrize("joined", [False, True])
def test_biases_of_zeros_are_one_where_their_gradients_show_it(joined: bool) -> None:
    packed, apart = _reset_gated(packed=True, scale=0), _reset_gated(packed=False, scale=0, joined=joined)
    for one, other in ((packed, apart), (apart, packed)):
        found = gs.compare(one, other)
        assert found, found.sentence
        alone = {row.name for row in found.rows if row.family == "param" and row.status != "same"}
        assert len(alone) == 2
        assert all("zero, and its gradient is" in row.why for row in found.rows if row.name in alone)
    assert not gs.compare(packed, _reset_gated(packed=False, scale=0, joined=joined, wrong=True))


def test_a_second_bias_of_zeros_is_a_term_where_its_gradient_is_that_of_the_first() -> None:
    def dump(name: str, *, biases: Mapping[str, Any]) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(name):
                y = batch["x"] @ weights[name]["kernel"] + sum(weights[name][each] for each in biases)
            return jnp.square(y).mean()

        return captured((loss, {name: {"kernel": QUERY, **biases}}, X))

    bias, zeros = VALUE.ravel()[:8], np.zeros(8, np.float32)
    one, other = dump("fc", biases={"b_ih": bias, "b_hh": zeros}), dump("dense", biases={"bias": bias})
    for found in (gs.compare(one, other), gs.compare(other, one)):
        assert found, found.sentence
    # A bias that is added elsewhere has another gradient, also where all values are the same.
    weights = {"fc": {"kernel": QUERY, "b_ih": bias, "b_hh": zeros}}

    def elsewhere(weights: Any, batch: Any) -> Any:
        with jax.named_scope("fc"):
            y = (batch["x"] + weights["fc"]["b_hh"]) @ weights["fc"]["kernel"] + weights["fc"]["b_ih"]
        return jnp.square(y).mean()

    assert not gs.compare(captured((elsewhere, weights, X)), other)


@cache
def _experts(*, stacked: bool, experts_first: bool = False, last: str = "") -> Dump:
    """Returns the dump of two layers of three experts, whose kernels are in one array or in one each.

    Args:
        stacked: Whether they are in one array.
        experts_first: Whether the first axis of the array is that of the experts.
        last: What is done with the last expert: "unused", "cut" off its gradient, or "doubled" in its gradient.
    """
    kernels = np.random.default_rng(3).normal(size=(2, 3, 8, 8)).astype(np.float32) / 3
    apart: Any = [{"experts": [{"w": kernel} for kernel in layer]} for layer in kernels]
    packed = {"w": kernels.swapaxes(0, 1) if experts_first else kernels}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in range(2):
            if stacked:
                own = weights["w"][:, layer] if experts_first else weights["w"][layer]
                of_experts = jnp.tanh(jnp.einsum("nd,edf->enf", x, own))
                x = x + (of_experts[:2] if layer == 1 and last == "unused" else of_experts).sum(0)
                continue
            each = [expert["w"] for expert in weights["blocks"][layer]["experts"]]
            if layer == 1 and last == "unused":
                each.pop()
            elif layer == 1 and last:
                constant = jax.lax.stop_gradient(each[2])
                each[2] = constant if last == "cut" else 2 * each[2] - constant
            x = x + sum(jnp.tanh(x @ kernel) for kernel in each)
        return jnp.square(x).mean()

    return captured((loss, packed if stacked else {"blocks": apart}, X))


@pytest.mark.slow
@sampled("experts_first", [False, True])
def test_experts_that_are_stacked_in_two_axes_are_paired_with_separate_ones(experts_first: bool) -> None:
    stacked, apart = _experts(stacked=True, experts_first=experts_first), _experts(stacked=False)
    for one, other in ((stacked, apart), (apart, stacked)):
        found = gs.compare(one, other)
        assert found, found.sentence
    for last in ("doubled", "cut"):
        wrong = _experts(stacked=False, last=last)
        assert "1 parameter gradient differs, of `w`" in gs.compare(stacked, wrong).sentence
        assert "`blocks/1/experts/2/w`" in gs.compare(wrong, stacked).sentence


@pytest.mark.slow
def test_an_expert_that_is_used_in_neither_program_makes_no_difference() -> None:
    stacked, apart = _experts(stacked=True, last="unused"), _experts(stacked=False, last="unused")
    for one, other in ((stacked, apart), (apart, stacked)):
        found = gs.compare(one, other)
        assert found, found.sentence


SKIPS = [{name: _draw(size=(8, 8)).astype(np.float32) for name in ("skip", "res")} for _ in range(3)]


@cache
def _skips(*, packed: bool, slopes: tuple[float, ...] = (1.0, 1.0, 1.0), within: bool = False) -> Dump:
    """Blocks with a skip and a residual, the last residual of which nothing reads.

    Args:
        packed: Whether a block has one layer for both.
        slopes: The factors of the skips.
        within: Whether each skip is added up with those before it within its layer.
    """

    def loss(weights: Any, batch: Any) -> Any:
        x, total = batch["x"], 0.0
        for at, own in enumerate(weights):
            y = jnp.tanh(x)
            with jax.named_scope(f"{'block' if packed else 'stack'}{at}"):
                if packed:
                    with jax.named_scope("both"):
                        skip, residual = jnp.split(y @ own["both"], 2, axis=1)
                else:
                    with jax.named_scope("skip"):
                        skip = y @ own["skip"] + (total if within else 0.0)
                    with jax.named_scope("res"):
                        residual = y @ own["res"]
            x, total = x + residual, slopes[at] * skip + (0.0 if within else total)
        with jax.named_scope("end"):
            return jnp.square(total).mean()

    joined = [{"both": np.concatenate([own["skip"], own["res"]], axis=1)} for own in SKIPS]
    return captured((loss, joined if packed else SKIPS, X))


@pytest.mark.slow
def test_a_packed_layer_has_a_part_that_nothing_reads_and_that_is_none_elsewhere() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_skips(packed=one), _skips(packed=other))
        assert found.verdict == "same", found.sentence
    compared = gs.compare(_skips(packed=False), _skips(packed=True)).rows
    assert "stack2/skip" in {row.name for row in compared if row.family == "activation" and row.status == "same"}


@sampled("wrong", range(3))
def test_sums_on_the_way_of_which_the_other_program_has_the_last_are_no_difference(wrong: int) -> None:
    on_the_way = _skips(packed=False, within=True)
    for one, other in ((on_the_way, _skips(packed=True)), (_skips(packed=True), on_the_way)):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
    slopes = tuple(0.0 if at == wrong else 1.0 for at in range(3))
    assert gs.compare(on_the_way, _skips(packed=True, slopes=slopes)).verdict == "different"
