"""An objective says in words what it counts of a module's outputs, and what it leaves out."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.objective import Called, LossOfOutputs

ONE = {"gate": {"balance": (jnp.ones(()),)}}
TWO = {"first": {"gate": {"balance": (jnp.ones(()), jnp.ones(()))}}, "second": {"balance": jnp.ones(())}}


@pytest.mark.parametrize(
    ("updated", "left"),
    [
        ({}, ""),
        ({"intermediates": ONE}, ""),
        ({"losses": {}}, ""),
        ({"losses": ONE}, "; not counted: losses/gate/balance, which is sown"),
        ({"losses": TWO}, "; not counted: 2 losses that are sown, as losses/first/gate/balance"),
    ],
)
def test_losses_that_modules_sow_are_said_to_be_left_out(updated: Any, left: str) -> None:
    shape = CallShape(positional=(), named=(), flags={})
    called = Called(shape=shape, inputs={}, outputs=jnp.ones((2, 3)), updated=updated, weights={})
    assert LossOfOutputs(name="mse").sentence(called) == f"mse of value{left}"
