"""Recorded steps that are all between two updates are told, of numbers that show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.learning import Learning, learning
from gradscope.presentation.reports.runs.run_facts import learning_notes


def read(
    folder: Path, *, every: int = 10, steps: int = 60, update: float | None = 0.0, first: float = 0.0,
    gradient: float = 1.0, moves: bool = True,
) -> Learning:  # fmt: skip
    """What a run says whose loss falls, with `MultiSteps` of several small steps or without."""
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        history.describe({}, [TensorRow(family=each, name="w") for each in ("param", "param_grad")])
        for step in range(0, steps, every):
            norm = first if step == 0 and update is not None else update
            numbers: dict[str, Any] = {
                "step": step, "loss": 1 / (1 + step), "grad_norm": gradient, "update_norm": norm, "param_norm": 1.0,
            }  # fmt: skip
            stats: dict[str, Any] = {
                "param/w": {"l2": 1 + step * moves, "mean": 0.0, "amax": 1.0}, "param_grad/w": {"l2": gradient},
            }  # fmt: skip
            history.write(lambda numbers=numbers, stats=stats: StepRecord(numbers=numbers, stats=stats))
    with History(folder) as history:
        return learning(history, history.steps(), history.losses())


def test_recorded_steps_that_are_all_between_two_updates_are_told(tmp_path: Path) -> None:
    found = read(tmp_path)
    (note,) = learning_notes(found)
    assert (note.label, found.words) == ("between-updates", {"between-updates"})
    assert "all updates of the 6 recorded steps are 0" in note.text
    assert note.text.endswith("record every 11 steps, and not every 10")
    assert found.to_json()["between_updates"] == {"count": 6, "every": 10}


@pytest.mark.parametrize(
    "options",
    [
        {"update": 1e-9},
        {"update": None},  # not recorded
        {"first": 0.1},  # one of them updates
        {"gradient": 0.0},
        {"moves": False},
        {"steps": 20},
        {"every": 1},  # there is none between them
    ],
)
def test_other_steps_are_not(options: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, **options).between is None
