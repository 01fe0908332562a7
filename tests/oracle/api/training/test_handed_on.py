"""A state that a step returns anew, and the loop does not hand on, is told; what is constant on purpose is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.history.history_reader import History
from gradscope.history.views.learning import stated_faults
from gradscope.training.probing.returned.handed_on import states_to_hand_on
from tests.support.data import drawn, filled

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

PARAMS = {"w": drawn(0, 4, 3), "b": filled(0.1, 3)}
NEW = jax.tree.map(lambda leaf: leaf + 1, PARAMS)
BATCH = {"x": drawn(1, 8, 4), "y": drawn(2, 8, 3)}
SGD, ADAM = optax.sgd(0.1, momentum=0.9), optax.adam(0.1)
GRADS = jax.tree.map(jnp.ones_like, PARAMS)
KEY, NEW_KEY = jax.random.split(jax.random.key(0))
PLACE = drawn(3, 2, 2)
ZEROS = jax.tree.map(jnp.zeros_like, PARAMS)


def after(optimizer: Any) -> tuple[Any, Any]:
    """Returns the state of an optimizer, and the next one."""
    state = optimizer.init(PARAMS)
    with jax.numpy_dtype_promotion("standard"):  # which Adam needs
        return state, optimizer.update(GRADS, state, PARAMS)[1]


def given(*, returned: Any, recorded: Any = None, **arguments: Any) -> dict[str, bool]:
    """Returns the states that are to be handed on, and whether the next one differs in what counts."""
    of_losses = {id(leaf) for leaf in jax.tree.leaves((PARAMS, BATCH))}
    found = states_to_hand_on(arguments, of_losses, returned, recorded)
    return {_name_in(fault.why): bool(change.is_due) for fault, change in found}


def _name_in(why: str) -> str:
    rest = why.partition(" the same ")[2] or why.removeprefix("the step ")
    return rest.partition(" at every")[0].partition(", so")[0]


def momentum() -> dict[str, bool]:
    state, following = after(SGD)
    return given(params=PARAMS, opt_state=state, batch=BATCH, returned=(NEW, following, 0.5))


def in_one_argument() -> dict[str, bool]:
    state, following = after(ADAM)
    return given(state={"params": PARAMS, "opt": state}, returned={"loss": 0.5, "state": (NEW, following)})


def near(factor: float) -> Any:
    return jax.tree.map(lambda leaf: factor * leaf, PARAMS)


def averages() -> dict[str, bool]:
    return given(params=PARAMS, ema=near(0.9), returned=(near(1.01), near(0.91)))


def teacher(factor: float) -> dict[str, bool]:
    """Returns what is told of the weights of a teacher where the step returns its gradients."""
    return given(params=PARAMS, teacher=near(factor), returned=(near(1.01), GRADS, 0.5))


def not_moved() -> dict[str, bool]:
    state, _ = after(ADAM)
    return given(params=PARAMS, opt_state=state, returned=(NEW, state))


def returned_as_given(*, steps_the_other: bool) -> dict[str, bool]:
    """Returns what is told of a step that records the next state of an optimizer and returns the one it was given."""
    (state, following), (other, next_other) = after(ADAM), after(SGD)
    recorded = next_other if steps_the_other else following
    after_other = next_other if steps_the_other else other
    return given(params=PARAMS, opt=state, other=other, returned=(NEW, state, after_other, 0.5), recorded=recorded)


def adds_up() -> dict[str, bool]:
    """Returns what is told of a step that adds up gradients, and leaves parameters and the optimizer as they are."""
    state, _ = after(ADAM)
    return given(params=PARAMS, opt=state, sums=ZEROS, batch=BATCH, returned=(PARAMS, state, GRADS), recorded=state)


def keys() -> dict[str, bool]:
    return given(params=PARAMS, key=KEY, other=jax.random.PRNGKey(0), returned=(NEW, NEW_KEY, jax.random.PRNGKey(1)))


TOLD: dict[str, tuple[Callable[[], dict[str, bool]], dict[str, bool]]] = {
    "momentum": (momentum, {"opt_state": True}),
    "a part of one argument": (in_one_argument, {"state['opt']": True}),
    "averages": (averages, {"ema": True}),
    "a state that did not move": (not_moved, {"opt_state": False}),
    "a state that is returned as it is given": (
        lambda: returned_as_given(steps_the_other=False),
        {"returns opt as it is given, and not the state that the optimizer makes of it": True, "other": False},
    ),
    "a state of another optimizer": (
        lambda: returned_as_given(steps_the_other=True),
        {"opt": False, "other": True},
    ),
    "a step that adds up gradients": (adds_up, {"opt": False, "sums": False}),
    "keys": (keys, {"key": True, "other": True}),
    "a target network": (lambda: given(params=PARAMS, target=NEW, returned=(NEW, 0.5)), {}),
    "a teacher, and gradients": (lambda: teacher(-1.0), {"teacher": False}),
    "the first parameters, and gradients": (lambda: teacher(1.0), {"teacher": False}),
    "an empty accumulator": (lambda: given(sums=ZEROS, returned=(NEW,)), {}),
    "a state of an environment": (
        lambda: given(env={"x": PLACE, "v": PLACE}, returned={"x": PLACE + 1, "v": PLACE}),
        {},
    ),
    "numbers": (lambda: given(limits=(jnp.float32(-1), jnp.float32(1)), returned=(jnp.float32(3), jnp.float32(4))), {}),
    "what a loss is given": (lambda: given(params=PARAMS, batch=BATCH, returned=(NEW, dict(BATCH))), {}),
    "an array": (lambda: given(params=PARAMS, epoch=jnp.int32(3), returned=(NEW, jnp.int32(5))), {}),
    "no arrays": (lambda: given(mode="train", extra=None, returned=None), {}),
}


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_states_with_a_next_one_are_to_be_handed_on(
    case: tuple[Callable[[], dict[str, bool]], dict[str, bool]],
) -> None:
    states, expected = case
    assert states() == expected


@pytest.mark.slow
@pytest.mark.parametrize(("returns", "hands_on"), [(True, True), (True, False), (False, True)])
def test_the_report_of_a_run_names_the_state(returns: bool, hands_on: bool, tmp_path: Path) -> None:
    probe = gs.Probe(tmp_path / "run", every=2)

    def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.square(batch["x"] @ p["w"] + p["b"][None] - batch["y"]).mean()

        value, grads = probe.value_and_grad(loss)(params)
        updates, following = SGD.update(grads, opt_state, params)
        probe.record(updates=updates, opt_state=following)
        return optax.apply_updates(params, updates), following if returns else opt_state, value

    step, params, state = probe.jit(train_step), PARAMS, SGD.init(PARAMS)
    with probe:
        for _ in range(7):
            params, following, _ = step(params, state, BATCH)
            state = following if hands_on else state
    with History(tmp_path / "run") as history:
        told = [each.why for each in stated_faults(history)]
    expected = [] if returns and hands_on else [
        "the loop gives the step the same opt_state at every step" if returns else
        "the step returns opt_state as it is given"
    ]  # fmt: skip
    assert [why.startswith(start) for why, start in zip(told, expected, strict=True)] == [True] * len(expected)
