"""The line of a run's losses says how they begin and end, and from where on they are not finite."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.history.views.learning import Learning
from gradscope.history.views.recorded_batches import RecordedBatches
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.runs.run_facts import clip_notes, loss_ends, run_facts

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([np.nan], "not a number"),
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


@pytest.mark.parametrize(
    ("same", "grad_norms", "said"),
    [
        (True, [1.0, 1.0], "6 taken, 2 recorded (all of one batch), the last is step 5"),
        (False, [1.0, 1.0], "6 taken, 2 recorded, the last is step 5"),
        (False, [INF, NAN], "6 taken, 2 recorded (1 made no update, as gradients were not finite), the last is step 5"),
        (True, [INF, 1.0],
         "6 taken, 2 recorded (all of one batch; 1 made no update, as gradients were not finite), the last is step 5"),
    ],
)  # fmt: skip
def test_the_line_of_the_steps_says_what_is_to_know_of_batches_and_updates(
    *, same: bool, grad_norms: list[float], said: str
) -> None:
    steps = {"step": np.array([0, 5]), "loss": np.array([2.0, 1.0]), "grad_norm": np.array(grad_norms),
             "update_norm": np.array([0.0, 0.1])}  # fmt: skip
    learning = Learning(batches=RecordedBatches(same=same))
    notes = run_facts("run", steps, steps, taken=6, at=None, resumed_from=None, screen=Screen(), learning=learning)
    assert {note.label: note.text for note in notes}["steps"] == said


@pytest.mark.parametrize(
    ("clipped", "said"),
    [
        ([1e-6] * 5, True),
        ([1e-6] * 4, False),  # of the first steps of a run nothing is said
        ([1e-6] * 4 + [0.1], False),  # and not where a step is clipped little
        ([5e-2] * 5, False),
        ([NAN] * 5, False),  # nothing clips
    ],
)
def test_a_clip_far_below_the_gradients_of_every_step_is_a_fact(*, clipped: list[float], said: bool) -> None:
    steps = {"grad_norm": np.linspace(1.0, 3.0, len(clipped)), "grad_norm_clipped": np.array(clipped)}
    notes = clip_notes(steps)
    assert [note.label for note in notes] == ["clip"] * said
    assert all("gradients leaves 5e-07 of their norm" in note.text for note in notes)
