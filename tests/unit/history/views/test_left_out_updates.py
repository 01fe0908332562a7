"""A run whose recorded steps all leave out their updates says so, and fails where that is asked for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradscope.cli.options.checked_findings import failures_of_run
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.learning import learning
from gradscope.presentation.reports.runs.alarm_words import run_verdict


@pytest.mark.parametrize(
    ("steps", "loss", "made", "found"),
    [
        (8, 1.0, (), True),
        (7, 1.0, (), False),  # a loss scale that is yet to fit
        (2, math.nan, (), True),
        (20, math.nan, (19,), False),
        (20, 1.0, (0,), False),
    ],
)
def test_a_run_without_any_update_says_so(
    tmp_path: Path, steps: int, loss: float, made: tuple[int, ...], found: bool
) -> None:
    with HistoryWriter(tmp_path, from_step=0, facts={}) as history:
        for step in range(steps):
            gradient, update = (1.0, 0.1) if step in made else (math.nan, 0.0)
            numbers = {"step": step, "loss": loss, "grad_norm": gradient, "update_norm": update, "param_norm": 1.0}
            history.write(lambda numbers=numbers: StepRecord(numbers=numbers, stats={}))
    with History(tmp_path) as history:
        told = learning(history, history.steps(), history.losses())
    verdict = run_verdict((), told, recorded=steps).text
    assert ("nonfinite" in told.words) is ("but no recorded step made an update" in verdict) is found
    assert told.to_json().get("left_out") == ({"count": steps} if found else None)
    assert bool(failures_of_run(tmp_path, (), frozenset({"nonfinite"}))) is found
