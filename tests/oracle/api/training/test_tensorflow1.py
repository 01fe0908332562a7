"""TensorFlow 1's own numbers: ten steps of each optimizer, clip and average, recorded in `tensorflow1.json`.

They were made with `tf.compat.v1.train` of the version that the file states, in float32 on a CPU:

    w = tf1.get_variable("w", initializer=tf.constant(START))
    loss = tf.reduce_sum(CURVATURE * (w - TARGET)**2 + 0.1 * tf.sin(3 * w))
    optimizer.apply_gradients(processed(optimizer.compute_gradients(loss)), global_step=step)

and after each step w, at the end every slot, were written down. Clips are applied to plain descent of rate 0.1,
averages taken of `momentum(0.05, 0.9)`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("tensorflow1.json").read_text())

#: TensorFlow's names of slots, and ours where they have the same values.
SLOTS = {
    "momentum": ("trace", "mom"), "accumulator": ("sum_of_squares",), "accum_update": ("e_x",), "m": ("mu",),
    "v": ("nu",), "rms": ("nu",), "mg": ("mu",), "accum": ("accum", "e_g"), "linear": ("linear",),
}  # fmt: skip


def loss(params: dict[str, Any], batch: Any) -> Any:
    curvature, target = jnp.array(RECORDED["curvature"]), jnp.array(RECORDED["target"])
    return jnp.sum(curvature * (params["w"] - target) ** 2 + 0.1 * jnp.sin(3 * params["w"])) + 0 * batch


def ten_steps(optimizer: str, **options: Any) -> tuple[Any, list[Any]]:
    step = gs.train_step(loss, optimizer, families=(), **options)
    compiled = jax.jit(step)
    states = [step.init({"w": jnp.array(RECORDED["start"])})]
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer
        for _ in range(10):
            states.append(compiled(states[-1], 0.0)[0])
    return states[-1], states[1:]


@pytest.mark.parametrize("optimizer", RECORDED["optimizers"])
def test_ten_steps_are_those_of_tensorflow(optimizer: str) -> None:
    recorded = RECORDED["optimizers"][optimizer]
    last, states = ten_steps(optimizer)
    # optax's Adam adds epsilon after the correction of the bias: a difference of 5e-6 at its default.
    tolerance = 1e-5 if optimizer.startswith("adam(") else 1e-6
    np.testing.assert_allclose([state.params["w"] for state in states], recorded["w"], rtol=2e-6, atol=tolerance)
    slots = last.slots()
    for name, value in recorded["slots"].items():
        ours = [slots[key] for key in (f"slot/{slot}/w" for slot in SLOTS[name]) if key in slots]
        if name == "momentum" and not ours:
            continue  # optax keeps no momentum where there is none
        assert len(ours) == 1, (name, sorted(slots))
        np.testing.assert_allclose(ours[0], value, rtol=10 * tolerance, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("clip", RECORDED["clips"])
def test_clipped_steps_are_those_of_tensorflow(clip: str) -> None:
    _, states = ten_steps("sgd(0.1)", clip=clip)
    np.testing.assert_allclose(
        [state.params["w"] for state in states], RECORDED["clips"][clip]["w"], rtol=2e-6, atol=1e-6
    )


@pytest.mark.parametrize("ema", RECORDED["averages"])
def test_averages_are_those_of_tensorflow(ema: str) -> None:
    _, states = ten_steps("momentum(0.05, 0.9)", ema=ema)
    recorded = RECORDED["averages"][ema]["average"]
    np.testing.assert_allclose([state.averages()["average/w"] for state in states], recorded, rtol=2e-6, atol=1e-6)
