"""First divergence: the order in which two runs part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import ComparisonRow, Status
from gradscope.comparison.diagnosis.divergence import first_divergence
from tests.support.data import drawn


def row(family: str, name: str, index: int, status: Status = "different") -> ComparisonRow:
    return ComparisonRow(name=name, family=family, status=status, index=index)


def test_forward_is_the_first_in_execution_order_whatever_the_order_of_rows() -> None:
    found = first_divergence(
        [row("activation", "late", 7), row("activation", "early", 3), row("activation", "ok", 1, "same")]
    )
    assert found.forward is not None
    assert found.forward.name == "early"


def test_backward_is_the_last_in_execution_order() -> None:
    rows = [
        row("activation_grad", "early", 3),
        row("activation_grad", "late", 7),
        row("activation_grad", "ok", 9, "same"),
    ]
    found = first_divergence(rows)
    assert found.backward is not None
    assert found.backward.name == "late"
    assert found.backward_only


def test_rows_of_one_index_diverge_in_the_order_of_the_dump() -> None:
    rows = [row("activation", "own", 3), row("activation", "alias", 3)]
    rows += [row("activation_grad", "own", 3), row("activation_grad", "alias", 3)]
    found = first_divergence(rows)
    assert found.forward is not None
    assert found.backward is not None
    assert (found.forward.name, found.backward.name) == ("own", "own")


def test_parameters_and_missing_rows_are_no_divergence() -> None:
    rows = [row("param", "w", 0), row("param_grad", "w", 0), row("activation", "gone", 0, "missing")]
    found = first_divergence(rows)
    assert (found.forward, found.backward, found.backward_only) == (None, None, False)


@pytest.mark.slow
@pytest.mark.parametrize("summed", [False, True], ids=["alone", "in a sum"])
def test_two_layers_that_read_one_other_step_are_no_two_errors(summed: bool) -> None:
    draw = np.random.default_rng(3)
    weights = {name: draw.normal(size=(6, 6)).astype(np.float32) for name in ("stem", "left", "right", "head")}
    edges = draw.normal(size=(9, 20, 1)).astype(np.float32)
    batch = {"x": draw.normal(size=(9, 6)).astype(np.float32), "edges": edges}

    def program(function: Callable[[Any], Any]) -> Dump:
        def loss(own: Any, given: Any) -> Any:
            def dense(name: str, x: Any) -> Any:
                with jax.named_scope(name):
                    return x @ own[name]

            x = function(dense("stem", given["x"]))
            left = dense("left", (x[:, None] * given["edges"]).sum(1) if summed else x)
            return jnp.square(dense("head", jnp.tanh(left) * dense("right", x))).mean()

        return gs.capture(loss, weights, batch, origins=False)

    found = gs.compare(program(jax.nn.relu), program(jax.nn.elu))
    assert "first differs at `left`" in found.sentence
    assert "made anew" not in found.sentence


def _autoencoder(*, stopped: bool = False, rows_first: bool = True) -> Dump:
    """An image whose mean and deviation two layers tell, of which a number is drawn.

    Args:
        stopped: Whether no gradient arrives at the mean and the deviation from what is drawn.
        rows_first: Whether the image is flattened in the order of its axes.
    """
    draw = np.random.default_rng(3)
    shapes = {"stem": (4, 6), "mean": (30, 3), "deviation": (30, 3), "head": (3, 4)}
    weights = {name: draw.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    batch = {name: draw.normal(size=shape).astype(np.float32) for name, shape in (("x", (7, 5, 4)), ("noise", (7, 3)))}

    def loss(own: Any, given: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ own[name]

        x = dense("stem", given["x"])
        flat = (x if rows_first else x.swapaxes(1, 2)).reshape(7, 30)
        mean, deviation = dense("mean", flat), dense("deviation", flat)
        drawn = mean + jnp.exp(deviation) * given["noise"]
        made = dense("head", jax.lax.stop_gradient(drawn) if stopped else drawn)
        return jnp.square(made - 1).mean() + (jnp.square(mean) + jnp.exp(deviation) - deviation).mean()

    return gs.capture(loss, weights, batch, origins=False)


@pytest.mark.slow
def test_two_layers_behind_one_other_step_are_no_two_errors() -> None:
    found = gs.compare(_autoencoder(), _autoencoder(stopped=True))
    assert "backward first differs at `deviation`" in found.sentence
    assert "made anew" not in found.sentence
    found = gs.compare(_autoencoder(), _autoencoder(rows_first=False))
    assert "first differs at `mean`" in found.sentence
    assert "flattens the axes" in found.sentence
    assert "made anew" not in found.sentence


def test_a_gradient_behind_a_forward_difference_is_not_said_to_be_made_anew() -> None:
    """A rectifier passes other elements where a few signs differ, and the error grows to the root of what it was."""

    def captured(shift: float) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope("stem"):
                h = x @ weights["stem"] + shift
            with jax.named_scope("first"):
                h = h @ weights["first"]
            with jax.named_scope("second"):
                h = jax.nn.relu(h)
            with jax.named_scope("head"):
                return (h @ weights["head"]).mean()

        weights = {"stem": drawn(4, 5, 5), "first": drawn(1, 5, 64), "head": drawn(2, 64, 3)}
        return gs.capture(loss, weights, drawn(3, 4096, 5))

    found = gs.compare(captured(0.0), captured(1e-3))
    row = next(each for each in found.rows if (each.family, each.name) == ("activation_grad", "first"))
    assert row.metrics["growth"] > 10
    assert "Backward first differs at `first` (rel_l2 2.0e-2);" in found.sentence, found.sentence
