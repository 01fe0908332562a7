"""What a step carries on beside parameters: collections that a framework returns by path, and random keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

KEYS = jax.random.split(jax.random.key(3), 2)


def variables() -> dict[str, Any]:
    return {
        "params": {"w": jnp.ones(3)},
        "batch_stats": {"norm": {"mean": jnp.zeros(3), "count": jnp.int32(0)}},
        "rngs": {"dropout": jax.random.key(1), "each": KEYS},
    }


def loss(variables: Any, batch: Any) -> Any:
    keep = jax.random.bernoulli(variables["rngs"]["dropout"], 0.5, (3,))
    value = (variables["params"]["w"] * jnp.where(keep, batch, 0)).sum()
    return value, {"batch_stats/norm/mean": batch, "batch_stats/norm/count": jnp.zeros(2), "output": value}


@pytest.mark.slow
def test_a_collection_that_a_module_returns_by_path_is_carried_on() -> None:
    step = gs.train_step(loss, "sgd(0.1)", families=())
    state, _ = jax.jit(step)(step.init(variables()), jnp.arange(3.0))
    np.testing.assert_array_equal(state.variables["batch_stats"]["norm"]["mean"], [0, 1, 2])
    assert state.variables["batch_stats"]["norm"]["count"] == 0, "a value of another shape is no update"
    refused = gs.train_step(loss, "sgd(0.1)", families=(), state_updates=False)
    state, _ = refused(refused.init(variables()), jnp.arange(3.0))
    np.testing.assert_array_equal(state.variables["batch_stats"]["norm"]["mean"], 0)


@pytest.mark.slow
def test_every_step_draws_with_the_key_in_its_state_and_leaves_another() -> None:
    step = gs.train_step(loss, "sgd(0.1)", families=())
    state, expected = step.init(variables()), jax.random.key(1)
    for _ in range(3):
        keep = jax.random.bernoulli(expected, 0.5, (3,))
        value = float((state.variables["params"]["w"] * keep.astype(jnp.float32)).sum())
        state, seen = jax.jit(step)(state, jnp.ones(3))
        assert float(seen.loss) == pytest.approx(value)
        expected = jax.random.fold_in(expected, 1)
        assert jnp.array_equal(jax.random.key_data(state.variables["rngs"]["dropout"]), jax.random.key_data(expected))
    folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(KEYS)
    again = step(step.init(variables()), jnp.ones(3))[0].variables["rngs"]["each"]
    assert jnp.array_equal(jax.random.key_data(again), jax.random.key_data(folded))


def test_a_step_that_observes_nothing_is_the_program_that_would_run_without_us() -> None:
    batch = jnp.arange(3.0)
    step = gs.train_step(loss, "sgd(0.1)", families=())
    ours = jax.make_jaxpr(lambda state, batch: step.compute_gradients(state, batch).gradients)(
        step.init(variables()), batch
    )

    def by_hand(params: Any, others: Any, batch: Any) -> Any:
        return loss({**others, "params": params}, batch)

    def plain(state: Any, batch: Any) -> Any:
        others = {**state.variables, "params": None}
        return jax.value_and_grad(by_hand, has_aux=True)(state.params, others, batch)[1]

    theirs = jax.make_jaxpr(plain)(step.init(variables()), batch)
    assert [equation.primitive for equation in ours.eqns] == [equation.primitive for equation in theirs.eqns]
