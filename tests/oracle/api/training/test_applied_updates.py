"""A run says that parameters do not move by the updates that a step records, and by how many times they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.history.history_reader import History
from gradscope.history.views.learning import stated_faults
from gradscope.training.probing.returned.applied_updates import _moves, moves
from tests.support.data import drawn
from tests.support.sampled import sampled

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

PARAMS = {"w": drawn(0, 4, 3), "b": drawn(1, 3)}
BATCH = {"x": drawn(2, 8, 4), "y": drawn(3, 8, 3)}
TX = optax.sgd(0.1, momentum=0.9)


class _State(NamedTuple):
    params: Any
    other: Any


def loss(params: Any, batch: Any) -> Any:
    return jnp.square(batch["x"] @ params["w"] + params["b"][None] - batch["y"]).mean()


def faults(
    folder: Path, *, change: Callable[[Any, Any], Any] | None = None, record: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = TX, params: Any = PARAMS, other: Callable[[Any], Any] | None = None,
    returned: Callable[[Any, Any], Any] = _State, steps: int = 8, last: float = 1.0,
    of: Callable[[Any, Any], Any] = loss,
) -> list[str]:  # fmt: skip
    """What a run of a loop says of its updates.

    Args:
        folder: The run's.
        change: Makes of the new parameters and the updates what the step returns.
        record: Makes of the updates and the gradients what the step records.
        optimizer: The optimizer.
        params: The first parameters.
        other: Makes of the parameters another pytree of the state, as a mean of them.
        returned: Makes of the new parameters and the rest what the step returns.
        steps: How many are taken; every second is recorded.
        of: The loss.
        last: What the inputs of the last one are multiplied by.
    """
    with gs.Probe(folder, every=2) as probe:

        def train_step(state: Any, opt_state: Any, batch: Any) -> Any:
            _, grads = probe.value_and_grad(of)(state.params, batch)
            updates, opt_state = optimizer.update(grads, opt_state, state.params)
            probe.record(updates=updates if record is None else record(updates, grads), opt_state=opt_state)
            new = optax.apply_updates(state.params, updates)
            new = new if change is None else change(new, updates)
            rest = None if other is None else jax.tree.map(lambda old, each: 0.9 * old + 0.1 * each, state.other, new)
            return returned(new, rest), opt_state

        step = probe.jit(train_step)
        state, opt_state = _State(params, None if other is None else other(params)), optimizer.init(params)
        for number in range(steps):
            batch = BATCH | {"x": BATCH["x"] * last} if number == steps - 1 else BATCH
            with jax.numpy_dtype_promotion("standard"):  # which Adam needs
                out, opt_state = step(state, opt_state, batch)
            state = out if isinstance(out, _State) else _State(*out[::-1])
    with History(folder) as history:
        return [fault.why for fault in stated_faults(history) if fault.rule == "misapplied"]


def plus(times: float) -> Callable[[Any, Any], Any]:
    return lambda new, updates: jax.tree.map(lambda each, update: each + times * update, new, updates)


@sampled(
    ("times", "factor", "said"),
    [
        (1.0, "2 times", ", as where these are added twice"),
        (2.0, "3 times", ", as where these are added 3 times"),
        (-2.0, "-1 times", ", as where these are subtracted in place of added"),
        (-0.5, "0.5 times", ": give probe.record what is added to them"),
    ],
)
def test_updates_that_are_applied_otherwise_than_once(times: float, factor: str, said: str, tmp_path: Path) -> None:
    (why,) = faults(tmp_path, change=plus(times))
    assert why == f"the parameters move by {factor} the updates that the step records, at every recorded step{said}"


def test_updates_that_are_recorded_before_the_learning_rate(tmp_path: Path) -> None:
    (why,) = faults(tmp_path, optimizer=optax.sgd(0.1), record=lambda _, grads: grads)
    assert why.startswith("the parameters move by -0.1 times the updates that the step records")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda new, _: new | {"b": new["w"][0]},  # a tied weight
        lambda new, _: new | {"b": jnp.clip(new["b"], -0.01, 0.01)},
    ],
)
def test_a_parameter_that_is_written_over(change: Any, tmp_path: Path) -> None:
    (why,) = faults(tmp_path, change=change)
    assert why.startswith("b moves by something else than its recorded update, at every recorded step")


def test_updates_of_zeros_that_are_none(tmp_path: Path) -> None:
    (why,) = faults(tmp_path, record=lambda updates, _: jax.tree.map(jnp.zeros_like, updates))
    assert why.startswith("b, w move by something else than their recorded update")


@pytest.mark.slow
@sampled(
    "loop",
    [
        {},
        {"optimizer": optax.adamw(1e-3)},
        {"optimizer": optax.MultiSteps(optax.sgd(0.1), 2)},
        {"optimizer": optax.sgd(1e-5), "params": jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)},
        {"optimizer": optax.sgd(1e-9)},  # lost in the rounding of the sum
        {"other": lambda params: jax.tree.map(jnp.zeros_like, params)},  # a mean, and a momentum
        {"other": lambda params: params},  # a mean that begins where the parameters do
        {"other": lambda params: params, "returned": lambda new, rest: (rest, new)},  # in another order
        {"returned": lambda new, _: (new, new)},  # more pytrees like it than there were: nothing is known
        {"change": plus(1.0), "steps": 4},  # too few to say so
        {"change": lambda new, updates: jax.tree.map(  # a projection that is at work for some of the steps
            lambda each, update: jnp.where(jnp.abs(update).max() > 0.01, 0.99 * each, each), new, updates),
         "steps": 60},
    ],
)  # fmt: skip
def test_loops_whose_parameters_move_by_their_updates(loop: dict[str, Any], tmp_path: Path) -> None:
    assert faults(tmp_path, **loop) == []


@pytest.mark.slow
def test_a_target_network_is_moved_by_the_loop_and_by_no_update(tmp_path: Path) -> None:
    def temporal(params: Any, batch: Any) -> Any:
        target = jax.lax.stop_gradient(batch["x"] @ params["target"])
        return jnp.square(batch["x"] @ params["online"] - 0.9 * target - batch["y"]).mean()

    def averaged(new: Any, _: Any) -> Any:
        return new | {"target": 0.99 * new["target"] + 0.01 * new["online"]}

    both = {"online": drawn(0, 4, 3), "target": drawn(1, 4, 3)}
    assert faults(tmp_path / "target", params=both, of=temporal, change=averaged) == []
    (why,) = faults(
        tmp_path / "online", params=both, of=temporal, change=lambda new, _: new | {"online": new["target"]}
    )
    assert why.startswith("online moves by something else")


@pytest.mark.slow
@sampled("broken", [jnp.nan, jnp.inf])
def test_a_step_that_is_not_finite_does_not_take_back_what_the_others_say(broken: float, tmp_path: Path) -> None:
    (why,) = faults(tmp_path, change=plus(1.0), steps=9, last=broken)
    assert "as where these are added twice" in why


@pytest.mark.parametrize("shape", [(), (3,), (9000,), (300, 40), (2, 3, 5000), (70, 70, 9)])
def test_elements_all_over_a_large_parameter_are_looked_at(shape: tuple[int, ...]) -> None:
    param, update = drawn(0, *shape), drawn(1, *shape)
    factor, apart, left = moves(param, update, [param + 2 * update])
    assert (float(factor), float(apart), float(left)) == pytest.approx((2, 1, 0), abs=1e-3)
    half = jnp.arange(update.size).reshape(shape) >= update.size // 2
    _, apart, _ = moves(param, update, [jnp.where(half, param + update, param)])
    assert float(apart) == pytest.approx(0.7, abs=0.1) or update.size <= 3


@pytest.mark.slow
@sampled("dtype", ["float32", "bfloat16", "complex64"])
def test_the_moves_on_the_host_are_those_that_jax_computes(dtype: str) -> None:
    param, update, other = (jnp.asarray(drawn(seed, 70, 90), dtype) for seed in range(3))
    none = jnp.zeros_like(param)
    for new, own in (
        (param + update, update),
        (param - 3 * update, update),
        (other, update),
        (param, none),
        (other, none),
    ):
        on_host, by_jax = jax.jit(moves)(param, own, [new, other]), _moves(jnp, param, own, new, other)
        assert np.asarray(on_host) == pytest.approx(np.asarray(by_jax), rel=1e-4, abs=1e-5)
    assert jax.jit(moves)(param, update, [param - 3 * update])[0] == pytest.approx(-3, rel=1e-2)
