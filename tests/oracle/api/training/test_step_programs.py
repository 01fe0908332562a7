"""The compiled programs of a step, and what is on its way when the loop around them fails."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.errors import MachineError

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")


@pytest.mark.slow
def test_a_step_that_was_started_has_ended_where_the_loop_fails() -> None:
    from gradscope.training.loop.step_programs import StepPrograms

    def loss(params: dict[str, Any], batch: Any) -> Any:
        product = jax.lax.fori_loop(0, 40, lambda _, x: jnp.sin(x @ x), batch)
        return jnp.sum(params["w"] ** 2) + product.mean()

    step = gs.train_step(loss, "sgd(0.1)", families=())
    programs, started = StepPrograms(step, check=True), []
    state = step.init({"w": jnp.ones(2)})

    def fail() -> None:
        with programs.finished_on_failure():
            taken = programs.plain(state, programs.sound_so_far(), jnp.ones((500, 500)))
            started.append(taken.sound)
            assert not taken.sound.is_ready(), "the step was not on its way"
            raise MachineError("the disk is full")

    with pytest.raises(MachineError, match="the disk is full"):
        fail()
    assert started[0].is_ready()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_with_wide_types_a_step_has_those_of_its_parameters(dtype: str) -> None:
    from gradscope.training.loop.step_programs import StepPrograms

    step = gs.train_step(lambda params, batch: jnp.sum((params["w"] - batch) ** 2), "sgd(0.1)", families=())
    programs = StepPrograms(step, check=True)
    state = step.init({"w": jnp.ones(2, dtype)})
    taken = programs.plain(state, programs.sound_so_far(), jnp.zeros(2, dtype))
    assert taken.state.params["w"].dtype == dtype
    assert taken.state.params["w"] == pytest.approx(0.8)
    assert float(taken.numbers["update_norm"]) == pytest.approx(0.2 * 2**0.5)
