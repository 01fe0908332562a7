"""The line of a run's losses says how they begin and end, and from where on they are not finite."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.history.views.learning import Learning
from gradscope.history.views.recorded_batches import RecordedBatches
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.runs.run_facts import loss_ends, run_facts

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([2.0, 1.0, 0.5], "2.00 to 0.500"),
        ([2.0, NAN, NAN], "2.00 to not a number from step 1 on"),
        ([NAN, NAN, NAN], "not a number at 3 of 3 steps"),
        ([NAN, 1.0, NAN, NAN], "not a number at 3 of 4 steps"),
        ([INF, 1.0, INF], "inf at 2 of 3 steps"),
        ([NAN, 1.0, 0.5], "not a number to 0.500"),
    ],
)
def test_losses_that_are_not_finite(losses: list[float], said: str) -> None:
    steps = np.arange(len(losses))
    assert loss_ends({"step": steps}, {"step": steps, "loss": np.array(losses)}) == said


def test_the_line_of_the_steps_says_that_the_recorded_batches_are_one() -> None:
    steps = {"step": np.array([0, 5]), "loss": np.array([2.0, 1.0])}
    said = [
        {note.label: note.text for note in run_facts(
            "run", steps, steps, taken=6, at=None, resumed_from=None, screen=Screen(),
            learning=Learning(batches=RecordedBatches(same=same)),
        )}["steps"]
        for same in (True, False)
    ]  # fmt: skip
    assert said == [
        "6 taken, 2 recorded (all of one batch), the last is step 5", "6 taken, 2 recorded, the last is step 5",
    ]  # fmt: skip
