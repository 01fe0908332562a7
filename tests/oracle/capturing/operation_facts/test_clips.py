"""The share of a clip that is at its limits is what NumPy finds in its operand, however the clip is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.presentation.tables.facts import facts
from tests.support.data import drawn

X = drawn(0, 32, 8)
PARAMS = {"inner": drawn(1, 8, 8), "outer": drawn(2, 8, 1)}


def clips_of(function: Callable[[Any], Any]) -> list[tuple[float, float, float]]:
    """Returns limits and share of each clip between two kernels."""
    dump = gs.capture(lambda p, x: jnp.square(function(x @ p["inner"]) @ p["outer"]).mean(), PARAMS, X)
    assert dump.findings() == ()
    return [(each.low, each.high, each.share) for each in dump.manifest.clips]


@pytest.mark.slow
@pytest.mark.parametrize(
    "clip",
    [lambda x: jnp.clip(x, -1, 1), lambda x: jax.lax.clamp(-1.0, x, 1.0),
     lambda x: jnp.maximum(jnp.minimum(x, 1.0), -1.0), jax.checkpoint(lambda x: jnp.clip(x, -1.0, 1.0)),
     jax.vmap(lambda row: jnp.clip(row, -1, 1))],
)  # fmt: skip
def test_a_clip_is_found_with_the_share_that_is_outside(clip: Callable[[Any], Any]) -> None:
    expected = float((np.abs(np.asarray(X) @ np.asarray(PARAMS["inner"])) >= 1).mean())
    assert clips_of(clip) == [(-1, 1, pytest.approx(expected, abs=1e-6))]


@pytest.mark.slow
def test_the_iterations_of_a_loop_are_one_clip() -> None:
    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (jnp.clip(2 * x, -1.0, 1.0), None), x, length=2)[0]

    before = np.asarray(X) @ np.asarray(PARAMS["inner"])
    shares = [(np.abs(2 * before) >= 1).mean(), (np.abs(np.clip(2 * before, -1, 1)) >= 0.5).mean()]
    assert clips_of(looped) == [(-1, 1, pytest.approx(np.mean(shares), abs=1e-6))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [jax.nn.relu, jax.nn.relu6, lambda x: jnp.clip(x, 0, 6), lambda x: jnp.clip(x, max=1),
     lambda x: jnp.clip(x, -99, 99), lambda x: x + jax.lax.stop_gradient(jnp.clip(x, -1, 1) - x)],
)  # fmt: skip
def test_a_rectifier_a_bound_on_one_side_and_a_clip_without_gradient_are_none(other: Callable[[Any], Any]) -> None:
    assert clips_of(other) == []


def test_it_is_a_fact_with_its_line_and_no_finding() -> None:
    dump = gs.capture(lambda w, x: jnp.clip(x @ w, 0.0, 0.1).sum(), PARAMS["inner"], X)
    (text,) = [text for label, text in facts("dump.npz", dump.manifest) if label == "clipped"]
    assert text.split(" of what the clip at test_clips.py:")[0].endswith("%")
    assert text.endswith(" returns is 0 or 0.1, where no gradient passes")
