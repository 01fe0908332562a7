"""That a layer reads the output of another layer is only said of outputs that both programs have an entry for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(2).normal
WEIGHTS = {
    "up": _draw(size=(6, 5)).astype(np.float32),
    "mid": _draw(size=(5, 5)).astype(np.float32),
    "bias": _draw(size=5).astype(np.float32),
    "head": _draw(size=(5, 3)).astype(np.float32),
}
ROWS = _draw(size=(4, 6)).astype(np.float32)


def _dump(*, scoped: bool, skipped: bool = False, bias: Any = WEIGHTS["bias"]) -> Dump:
    """A network whose activation function has a scope, or none, and whose next layer reads what it returns, or not."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("up"):
            x = x @ weights["up"]
        with jax.named_scope("act") if scoped else nullcontext():
            active = jax.nn.elu(x)
        with jax.named_scope("mid"):
            y = (x if skipped else active) @ weights["mid"] + weights["bias"].reshape(1, 5)
        with jax.named_scope("head"):
            return (((y + active) @ weights["head"]) ** 2).mean()

    return gs.capture(loss, WEIGHTS | {"bias": bias}, ROWS, origins=False)


@pytest.mark.slow
def test_a_step_without_a_scope_is_no_other_source() -> None:
    found = gs.compare(_dump(scoped=True), _dump(scoped=False, bias=0 * WEIGHTS["bias"]))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "mid"
    assert "reads" not in found.sentence, found.sentence


@pytest.mark.slow
def test_the_output_of_another_layer_is_told() -> None:
    found = gs.compare(_dump(scoped=True), _dump(scoped=True, skipped=True))
    assert "which reads `act`, and in the candidate `up`" in found.sentence, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("of_ref", [True, False])
def test_a_parameter_with_more_axes_of_one_element_is_compared_whatever_its_values_are(of_ref: bool) -> None:
    plain, zeros = _dump(scoped=False), _dump(scoped=False, bias=0 * WEIGHTS["bias"].reshape(1, 5, 1))
    found = gs.compare(*((plain, zeros) if of_ref else (zeros, plain)))
    (row,) = (row for row in found.rows if (row.family, row.name) == ("param", "bias"))
    assert row.status == "different"
    assert "rel_l2" in row.metrics
    assert "in another shape" not in row.likely
