"""A loss that has hardly fallen is told from one that falls, or that has come to its end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradscope.history.views.loss_fall import NoFall, no_fall

#: Recorded steps of a warmup from zero and a decay to zero, the third between two updates of `optax.MultiSteps`.
STEPS = {"update_norm": np.array([0.0, 0.02, 0.0, 0.03, 0.01, 1e-6, np.nan]), "param_norm": np.full(7, 10.0)}


def judged(mean: Callable[[np.ndarray], np.ndarray], spread: float = 0.05, steps: int = 200) -> NoFall | None:
    at = np.arange(steps)
    noise = np.random.default_rng(0).normal(0, spread, steps)
    return no_fall(STEPS, {"step": at, "loss": mean(at) + noise})


@pytest.mark.parametrize(
    "level",
    [lambda at: np.full(len(at), 1.39), lambda at: 1.39 + 0.5 * np.exp(-at / 8), lambda at: 1.4 - 1e-4 * at,
     lambda at: 2.0 + 0.1 * at, lambda at: np.full(len(at), -3.0)],
    ids=["as an answer that is the same to all", "which is learned first", "a drift", "one that rises", "below zero"],
)  # fmt: skip
def test_a_loss_that_stays_is_told_with_the_size_of_the_updates(level: Callable[[np.ndarray], np.ndarray]) -> None:
    found = judged(level)
    assert found is not None
    assert (found.count, found.ratio) == (50, pytest.approx(0.0015))
    assert found.last == pytest.approx(float(level(np.arange(150, 200)).mean()), abs=0.05)


@pytest.mark.parametrize(
    "level",
    [lambda at: 1.4 - 2e-3 * at, lambda at: 0.1 + 1.3 * np.exp(-at / 8), lambda at: -0.02 * at,
     lambda at: np.where(at < 120, 1.4, 1.0)],
    ids=["evenly", "at once, and then at its end", "below zero", "late"],
)  # fmt: skip
def test_a_loss_that_falls_is_not(level: Callable[[np.ndarray], np.ndarray]) -> None:
    assert judged(level) is None


@pytest.mark.parametrize(("norms", "ratio"), [([0.0, 0.0], 0.0), ([np.nan], None), ([], None)])
def test_updates_that_are_none_or_not_known_have_no_size(norms: list[float], ratio: float | None) -> None:
    steps = {"update_norm": np.array(norms), "param_norm": np.ones(len(norms))}
    found = no_fall(steps, {"step": np.arange(40), "loss": np.ones(40)})
    assert found is not None
    assert found.ratio == ratio


def test_few_losses_and_those_that_are_not_finite_say_nothing() -> None:
    assert judged(lambda at: np.ones(len(at)), steps=19) is None
    assert judged(lambda at: np.where(at == 7, np.nan, 1.0)) is None


@pytest.mark.parametrize(
    ("level", "verb"),
    [(lambda at: np.full(len(at), 1.39), "hardly fallen"), (lambda at: 2.0 + 0.1 * at, "risen"),
     (lambda at: -9.0 + 0.03 * at, "risen"),
     (lambda at: 1.5 + 5 * np.exp(-at), "fallen in its first steps, and hardly since"),
     (lambda at: 1.5 + 3e-3 * at + 5 * np.exp(-at), "fallen in its first steps, and risen since")],
    ids=["that stays", "that rises", "below zero that rises", "that comes to its end at once", "that rises again"],
)  # fmt: skip
def test_it_is_said_what_a_loss_does(level: Callable[[np.ndarray], np.ndarray], verb: str) -> None:
    found = judged(level)
    assert found is not None
    assert found.verb == verb
