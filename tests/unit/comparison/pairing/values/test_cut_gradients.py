"""A gradient that is cut off in one program is told at its layer, whatever the layer is called there."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(25).normal
KERNELS = [_draw(size=size).astype(np.float32) for size in ((4, 6), (6, 5), (5, 2))]
INPUTS = _draw(size=(3, 4)).astype(np.float32)
REFERENCE, PORT = ("first", "second", "third"), ("Dense_0", "Dense_1", "Dense_2")


@cache
def _program(
    names: tuple[str, str, str], data: str, *, cut: bool = False, unread: bool = False, ops: bool = False
) -> Dump:
    """Three layers with rectifiers between them, the first of which may be computed twice and read once."""

    def loss(weights: Any, batch: Any) -> Any:
        x = y = batch[data]
        for number, name in enumerate(names):
            x = jax.lax.stop_gradient(x) if cut and number == 1 and not ops else x
            for scope in (name, "again") if unread and number == 0 else (name,):
                with jax.named_scope(scope):
                    y = x @ weights[name]["w"]
            x = jax.nn.relu(jax.lax.stop_gradient(y) if cut and number == 0 and ops else y)
        return jnp.square(x).mean()

    weights = {name: {"w": w} for name, w in zip(names, KERNELS, strict=True)}
    return gs.capture(loss, weights, {data: INPUTS}, ops=ops)


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [False, True], ids=["in the candidate", "in the reference"])
def test_it_differs_first_at_its_layer(of_ref: bool) -> None:
    reference, port = _program(REFERENCE, "x", cut=of_ref), _program(PORT, "image", cut=not of_ref)
    found = gs.compare(reference, port)
    first = found.first_divergence
    assert first.backward_only
    assert first.backward is not None
    assert (first.backward.name, first.backward.counterpart) == ("first", "Dense_0")
    side, other = ("reference", "candidate") if of_ref else ("candidate", "reference")
    assert first.backward.why == f"no gradient arrives in the {side} (disconnected), and in the {other} one does"
    assert found.to_json()["first_divergence"] == {"backward": "first"}
    assert "Backward only: forward agrees, backward first differs at `first`" in found.sentence
    assert f"no gradient arrives at `first/w`, `x` in the {side}" in found.sentence, found.sentence
    differing = [(row.family, row.name) for row in found.rows if row.status == "different"]
    assert sorted(differing) == [("activation_grad", "first"), ("input_grad", "x"), ("param_grad", "first/w")]
    assert not any("either side" in row.why for row in found.rows)


def test_a_copy_behind_it_is_not_taken_for_the_value_where_every_operation_has_a_record() -> None:
    found = gs.compare(_program(REFERENCE, "x"), _program(PORT, "image", cut=True, ops=True))
    told = "`stop_gradient`, only in the candidate, or at `first` (no gradient arrives in"
    assert told in found.sentence, found.sentence
    assert gs.compare(_program(REFERENCE, "x"), _program(PORT, "image", ops=True)).verdict == "same"


@pytest.mark.slow
def test_a_right_port_has_none() -> None:
    assert gs.compare(_program(REFERENCE, "x"), _program(PORT, "image")).verdict == "same"
    assert gs.compare(_program(REFERENCE, "x"), _program(PORT, "image", unread=True)).verdict == "same"
