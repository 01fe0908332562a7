"""Ports of networks of which only statistics are known: what has the same elements, in whatever order, is the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.ports.everything import CONVNET, DECODER, LANGUAGE, MIXTURE, PORTS, SPEECH
from tests.support.ports.port import Program, captured, named_first
from tests.support.sampled import sampled

#: Another order of axes, packed parameters of several sizes, experts in a stack, gates of a recurrent layer, and layers
#: that are called as others are.
NETWORKS = (CONVNET, DECODER, LANGUAGE, MIXTURE, SPEECH)
SMALL = [port for port in PORTS if port.name in ("blocks written out", "layers counted from one")]


def measured(program: Program) -> Dump:
    """The dump of a program without tensors."""
    loss, variables, batch = program
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, variables, batch, origins=False, stats_only=True)


@pytest.mark.slow
@sampled("port", [*NETWORKS, *SMALL], ids=lambda port: port.name)
def test_a_correct_port_is_the_same_as_far_as_statistics_tell(port: Any) -> None:
    reference, candidate = measured(port.reference), measured(port.candidate(""))
    whole = captured(port.candidate(""))
    for pair in ((reference, candidate), (candidate, reference), (reference, whole), (whole, reference)):
        found = gs.compare(*pair)
        assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.status != "same"]
        assert found.sentence.startswith("Same as far as statistics tell"), found.sentence


@pytest.mark.slow
@sampled("port", [each for each in NETWORKS if each is not LANGUAGE], ids=lambda port: port.name)
def test_statistics_show_where_a_parameter_of_another_layer_is(port: Any) -> None:
    found = gs.compare(measured(port.reference), measured(port.candidate("another weight")))
    assert found.verdict == "different", found.sentence
    assert named_first(found) & {*port.shows_at["another weight"]}, found.sentence


def test_a_fault_shows_where_statistics_do_not_say_which_layer_is_which() -> None:
    found = gs.compare(measured(LANGUAGE.reference), measured(LANGUAGE.candidate("another weight")))
    assert found.verdict == "different"
    assert "o_proj.weight" in found.sentence, found.sentence


@pytest.mark.slow
def test_the_order_of_axes_is_the_one_that_the_shapes_of_most_tensors_allow() -> None:
    """As many channels as rows fit several orders, and other layers show which of them is meant."""
    found = gs.compare(measured(CONVNET.reference), measured(CONVNET.candidate("")))
    orders = {row.made_by for row in found.rows if row.family == "activation" and row.made_by}
    assert orders == {"transpose [0, 3, 1, 2]"}


@pytest.mark.slow
def test_a_fault_in_another_layout_is_told_by_statistics_and_not_by_its_shape() -> None:
    found = gs.compare(measured(CONVNET.reference), measured(CONVNET.candidate("padding")))
    assert found.verdict == "different"
    assert "the shape is" not in found.sentence, found.sentence


def _residual_blocks(function: Any, dtype: Any, *, scanned: bool) -> Program:
    """Three residual blocks whose branches are small, written out or scanned."""
    stack = {"up": drawn(1, 3, 8, 16), "down": drawn(2, 3, 16, 8) / 50}

    def block(weights: Any, x: Any) -> Any:
        with jax.named_scope("up"):
            h = x @ weights["up"].astype(dtype)
        with jax.named_scope("down"):
            branch = function(h) @ weights["down"].astype(dtype)
        return x + branch

    def loss(params: Any, x: Any) -> Any:
        x = x.astype(dtype)
        if scanned:
            with jax.named_scope("blocks"):
                x = lax.scan(lambda x, weights: (block(weights, x), None), x, params["blocks"])[0]
        else:
            for number in range(3):
                with jax.named_scope(f"blocks_{number}"):
                    x = block(params[f"blocks_{number}"], x)
        return jnp.square(x.astype(jnp.float32)).mean()

    apart = {f"blocks_{number}": {name: each[number] for name, each in stack.items()} for number in range(3)}
    return loss, {"blocks": stack} if scanned else apart, drawn(3, 32, 8)


def test_a_fault_of_a_branch_that_hardly_counts_is_told_where_behind_it_statistics_agree() -> None:
    """Statistics show the least that values are apart: that the sum agrees by them does not refute the pair."""
    reference = measured(_residual_blocks(jax.nn.gelu, jnp.float32, scanned=False))
    right, other = (captured(_residual_blocks(each, jnp.bfloat16, scanned=True)) for each in (jax.nn.gelu, jax.nn.silu))
    assert gs.compare(reference, right).verdict == "same"
    found = gs.compare(reference, other)
    assert found.verdict == "different"
    assert found.sentence.startswith("Forward first differs at `blocks_0/down` (judged by its statistics"), (
        found.sentence
    )
