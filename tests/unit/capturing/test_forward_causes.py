"""What went wrong in an operation is told by its operands, where those tell it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.explain.nonfinite.causes.forward_causes import diagnosis_by_operands
from gradscope.capturing.explain.nonfinite.failures import Failure


@pytest.mark.parametrize(("operand", "why"), [(0.0, "exp of 0 is not finite"), (100.0, "exp of 100 overflows")])
def test_an_exponential_overflows_of_no_small_operand(operand: float, why: str) -> None:
    (equation,) = jax.make_jaxpr(jnp.exp)(np.float32(operand)).eqns
    values = {
        "value": math.inf,
        "operands": (operand,),
        "tensors": [np.float32(operand)],
        "dtype": np.dtype(np.float32),
    }
    assert diagnosis_by_operands(Failure(equation=equation, index=(), arrived={}, **values)).why == why
