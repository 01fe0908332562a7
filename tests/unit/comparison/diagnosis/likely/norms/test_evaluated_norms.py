"""What batch norms in evaluation add to their running variances is told, and nothing where something else differs."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

DRAW = np.random.default_rng(8)
CHANNELS = 6
KERNEL = DRAW.normal(size=(CHANNELS, CHANNELS)).astype(np.float32)
IMAGES = DRAW.normal(size=(4, 5, 5, CHANNELS)).astype(np.float32)
WEIGHTS = {"scale": 1 + 0.2 * DRAW.normal(size=CHANNELS), "bias": DRAW.normal(size=CHANNELS)}
STATE = {"mean": DRAW.normal(size=CHANNELS), "var": DRAW.uniform(0.3, 2.0, CHANNELS)}


@cache
def _program(
    scope: str,
    epsilon: float = 1e-5,
    *,
    scaled: bool = True,
    factor: float = 1.0,
    shift: float = 0.0,
    constant: bool = False,
) -> Dump:
    statistics = {key: value.astype(np.float32) for key, value in STATE.items()}

    def loss(variables: Any, x: Any) -> Any:
        own = variables["params"]
        kept = statistics if constant else variables["batch_stats"][scope]
        with jax.named_scope("dense"):
            x = x @ own["dense"]["kernel"]
        with jax.named_scope(scope):
            x = (x - kept["mean"] - shift) * jax.lax.rsqrt(factor * kept["var"] + epsilon)
            x = x * own[scope]["scale"] + own[scope]["bias"] if scaled else x
        return jnp.square(jnp.tanh(x) - 0.3).mean()

    own = {key: value.astype(np.float32) for key, value in WEIGHTS.items()}
    params = {"dense": {"kernel": KERNEL}, **({scope: own} if scaled else {})}
    with jax.numpy_rank_promotion("allow"):
        state = {} if constant else {"batch_stats": {scope: statistics}}
        return gs.capture(loss, {"params": params, **state}, IMAGES, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("scaled", [True, False])
@sampled(("epsilon", "number"), [(1e-3, "1.0e-3"), (0.02, "2.0e-2")])
def test_what_is_added_to_a_running_variance_is_told(
    *, scaled: bool, epsilon: float, number: str, constant: bool
) -> None:
    usual, other = _program("norm", scaled=scaled), _program("bn", epsilon, scaled=scaled, constant=constant)
    words = f"it adds {number} to the variance, and the reference 1.0e-5"
    assert words in gs.compare(usual, other).sentence
    assert f"it adds 1.0e-5 to the variance, and the reference {number}" in gs.compare(other, usual).sentence


@sampled("constant", [False, True])
@pytest.mark.parametrize("other", [{"factor": 1.1}, {"shift": 0.1}, {"factor": 0.5, "epsilon": 1e-3}])
def test_nothing_is_told_where_the_norm_has_other_statistics(other: dict[str, float], *, constant: bool) -> None:
    found = gs.compare(_program("norm"), _program("bn", constant=constant, **other))
    assert found.verdict == "different"
    assert "to the variance" not in found.sentence
    assert not any("to the variance" in row.likely for row in found.rows)
