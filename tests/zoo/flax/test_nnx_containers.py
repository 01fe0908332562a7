"""Several modules of NNX in a dictionary or a list are one model, whose parts have the names of their places."""

from __future__ import annotations

from typing import Any

import pytest

import gradscope as gs

pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gradscope.frameworks.detect import split_variables

X = jnp.linspace(-1.0, 1.0, 20).reshape(5, 4)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.fc = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return nnx.relu(self.norm(self.fc(x)))


@pytest.mark.parametrize("kind", [dict, list])
def test_modules_in_a_container_are_named_by_their_places_and_averages_are_state(kind: type) -> None:
    parts = {"body": Block(nnx.Rngs(0)), "head": nnx.Linear(4, 2, rngs=nnx.Rngs(1)), "rngs": nnx.Rngs(2)}
    held: Any = parts if kind is dict else [*parts.values()]
    body, head, rngs = parts if kind is dict else range(3)

    def loss(held: Any, x: Any) -> Any:
        noise = jax.random.normal(held[rngs](), x.shape)
        return jnp.square(held[head](held[body](x + 0.1 * noise))).mean()

    expected = nnx.grad(lambda held: loss(held, X))(nnx.clone(held))
    dump = gs.capture(loss, held, X)
    keys = {*dump}
    assert {f"activation/{body}/fc", f"activation/{body}/norm", f"activation/{head}"} <= keys
    assert {key for key in keys if "norm" in key and key.startswith("param/")} == {
        f"param/{body}/norm/scale",
        f"param/{body}/norm/bias",
    }
    assert [finding.rule for finding in dump.findings()] == []
    gradient = expected[body]["fc"]["kernel"].get_value()
    np.testing.assert_allclose(dump[f"param_grad/{body}/fc/kernel"], gradient, rtol=1e-5, atol=1e-7)


def test_an_array_beside_modules_is_a_parameter_and_other_containers_are_left_as_they_are() -> None:
    linear = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    separated = split_variables({"net": linear, "scale": jnp.ones(())})
    assert separated is not None
    assert {*separated[1]["params"]} == {"net/kernel", "net/bias", "scale"}
    assert split_variables({"net": linear, "rate": 0.1}) is None
    assert split_variables((linear, X)) is None  # the arguments of a call
    assert split_variables({"scale": jnp.ones(())}) is None
