"""Ports of networks: a correct one is the same without a map, and a faulty one is different at the layer at fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison
from tests.support.ports.everything import FAULTY, PORTS
from tests.support.ports.port import FAULTS, Port, captured, named_first
from tests.support.sampled import sampled

REFERENCES = {port.name: port for port in PORTS}

#: A network for each fault that not all have, and the networks of which none is.
OWN = {fault: port for port in FAULTY for fault in port.shows_at if fault not in FAULTS}
OTHERS = [port for port in FAULTY if port not in OWN.values()]

#: One of those that show at the same place of a network, and one common fault in each of the others; `test_torch_ports`
#: has all that are common, `scripts/bench ports` all in all.
CHOSEN = [
    *{(port.name, port.shows_at[fault]): (port, fault) for fault, port in OWN.items()}.values(),
    *zip(OTHERS, FAULTS, strict=False),
]


@cache
def reference(name: str) -> Dump:
    return captured(REFERENCES[name].reference)


def compared(port: Port, fault: str = "") -> Comparison:
    return gs.compare(reference(port.name), captured(port.candidate(fault)))


@sampled("port", PORTS, ids=lambda port: port.name)
def test_a_correct_port_is_the_same_without_a_map(port: Port) -> None:
    found = compared(port)
    assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.status != "same"]
    assert not found.models


@sampled(("port", "fault"), CHOSEN, ids=[f"{port.name}-{fault}" for port, fault in CHOSEN])
def test_a_fault_is_blamed_on_its_layer(port: Port, fault: str) -> None:
    found = compared(port, fault)
    assert found.verdict == "different"
    assert not found.models
    assert named_first(found) & {*port.shows_at[fault]}, found.sentence


def test_a_step_that_only_the_candidate_has_is_named_first() -> None:
    (convnet,) = (port for port in FAULTY if port.name == "a convolutional network")
    sentence = compared(convnet, "dropout").sentence
    says = "Forward first differs at `dropout`, only in the candidate, and next at `flatten`"
    assert sentence.startswith(says), sentence


def test_the_name_in_the_candidate_is_told_of_what_only_its_place_pairs() -> None:
    (language,) = (port for port in FAULTY if port.name == "a language model")
    sentence = compared(language, "epsilon").sentence
    assert sentence.startswith("Forward first differs at `model/layers.1/input_layernorm` (rel_l2 "), sentence
    assert ", made here; it adds 1.0e-2 to the variance, and the reference 1.0e-6; " in sentence, sentence
    assert "; `block1/before` in the candidate). Backward" in sentence, sentence


def _image_network(*, channels_first: bool) -> Callable[..., Any]:
    order = ("NCHW", "OIHW", "NCHW") if channels_first else ("NHWC", "HWIO", "NHWC")

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("conv"):
            x = jax.lax.conv_general_dilated(batch["x"], weights["k"], (1, 1), "SAME", dimension_numbers=order)
        with jax.named_scope("pool"):
            x = jnp.tanh(x).mean((2, 3) if channels_first else (1, 2))
        return jnp.square(x @ weights["w"]).mean()

    return loss


@sampled("channels_first", [False, True])
@pytest.mark.parametrize("width", [6, 8])
def test_an_image_on_its_side_is_reported_where_no_parameter_is(width: int, channels_first: bool) -> None:
    draw = np.random.default_rng(11).normal
    kernel, head = draw(size=(3, 3, 3, 4)).astype(np.float32), draw(size=(4, 2)).astype(np.float32)
    image = draw(size=(5, 6, width, 3)).astype(np.float32)
    one = captured((_image_network(channels_first=False), {"k": kernel, "w": head}, {"x": image}))

    def port(kernel: Any, image: Any) -> Comparison:
        if channels_first:
            kernel, image = kernel.transpose(3, 2, 0, 1), image.transpose(0, 3, 1, 2)
        weights = {"k": np.ascontiguousarray(kernel), "w": head}
        loss = _image_network(channels_first=channels_first)
        return gs.compare(one, captured((loss, weights, {"x": np.ascontiguousarray(image)})))

    assert port(kernel, image)
    aside = port(kernel, image.swapaxes(1, 2))
    assert not aside
    assert "the same input in another layout, which no parameter has, and may be the cause: `x`" in aside.sentence
    # The kernels on their side bear it out.
    both = port(kernel.swapaxes(0, 1), image.swapaxes(1, 2))
    assert both, both.sentence
    assert all("own values alone" not in row.why for row in both.rows)
    # A fault behind a right layout leaves the input alone.
    assert "may be the cause" not in port(kernel * 1.1, image).sentence


@cache
def _transposing(*, port: bool, slope: float = 1.0) -> Dump:
    """Three layers; the port keeps its kernels on their side, and the second layer's output `[8, 4]` for `[4, 8]`."""
    names = [f"blocks.{number}" for number in "abc"] if port else ["fc1", "fc2", "fc3"]
    draw = np.random.default_rng(3).normal
    x, *kernels = (draw(size=size).astype(np.float32) for size in ((4, 6), (6, 8), (8, 8), (8, 3)))

    def turned(value: Any) -> Any:
        return value.T if port else value

    def loss(weights: Any, batch: Any) -> Any:
        first, second, third = (turned(weights[name]["kernel"]) for name in names)
        with jax.named_scope(names[0]):
            y = jnp.tanh(batch["x"] @ first)
        with jax.named_scope(names[1]):
            y = turned(jnp.tanh(y @ second * slope))
        with jax.named_scope(names[2]):
            return jnp.square(jnp.tanh(turned(y) @ third)).mean()

    own = {name: {"kernel": np.ascontiguousarray(turned(kernel))} for name, kernel in zip(names, kernels, strict=True)}
    return captured((loss, own, {"x": x}))


def test_a_faulty_layer_with_a_transposed_output_is_measured_in_that_layout() -> None:
    one = _transposing(port=False)
    assert gs.compare(one, _transposing(port=True)).verdict == "same"
    faulty = _transposing(port=True, slope=1.3)
    for found, name in ((gs.compare(one, faulty), "fc2"), (gs.compare(faulty, one), "blocks.b")):
        first = found.first_divergence.forward
        assert first is not None
        assert first.name == name, found.sentence
        rows = {row.family: row for row in found.rows if row.name == name}
        for family in ("activation", "activation_grad"):
            assert rows[family].made_by == "transpose [1, 0]"
            assert "rel_l2" in rows[family].why


@sampled(
    ("one", "other"),
    [
        ("a network of depthwise convolutions", "a vision transformer"),
        ("a language model", "an LSTM with another order of gates"),
        ("a decoder with grouped queries", "a speech network"),
    ],
)
def test_networks_that_have_nothing_in_common_are_said_to_be_different_models(one: str, other: str) -> None:
    begin = "These seem to be dumps of different models: the parameters of "
    for ref, cand in ((one, other), (other, one)):
        found = gs.compare(reference(ref), reference(cand))
        assert found.verdict == "different"
        assert found.sentence.startswith(begin), found.sentence
