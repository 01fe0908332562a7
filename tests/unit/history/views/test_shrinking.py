"""Weights that a decay takes away are told of a loss that does not fall, and not those that change otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.learning import Learning, learning
from gradscope.presentation.reports.runs.run_facts import learning_notes


def read(folder: Path, ends: list[float], *, slope: float = 0.0) -> Learning:
    """What a run says whose parameters `a`, `b`, ... begin with the norm 1 and end with others, and `bias` with 0."""
    names = "abcdef"[: len(ends)]
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        history.describe({}, [TensorRow(family="param", name=name) for name in (*names, "bias")])
        for step in range(21):
            norms = {
                name: end ** (step / 20) if end else float(step < 20) for name, end in zip(names, ends, strict=True)
            }
            norms["bias"] = 0.01 * step
            numbers: dict[str, Any] = {
                "step": step, "loss": 2.3 - slope * step, "param_norm": 1.0, "grad_norm": 1.0, "update_norm": 0.05,
            }  # fmt: skip
            stats: dict[str, dict[str, float | int | None]] = {
                f"param/{name}": {"l2": l2} for name, l2 in norms.items()
            }
            record = StepRecord(numbers=numbers, stats=stats)
            history.write(lambda record=record: record)
    with History(folder) as history:
        return learning(history, history.steps(), history.losses())


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([1e-4, 1e-4, 1e-3], "3 of 3 parameters shrink away, to 0.0001 of the norm"),
        ([0.0, 0.0], "2 of 2 parameters shrink away, to 0 of the norm"),
        ([1e-4, 1e-4, 0.8], "2 of 3 parameters shrink away, to 0.0001 of the norm"),
        ([1e-4, 0.8, 0.8], None),
        ([1e-4, 1e-4, 1.5], None),
        ([0.5, 0.5, 0.5], None),
    ],
)
def test_parameters_that_shrink_away_are_told_with_what_is_left(
    ends: list[float], told: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path, ends)
    (note,) = learning_notes(found)
    assert ("shrink away" in note.text) == (told is not None)
    assert told is None or told in note.text
    assert ("shrinking" in json.dumps(found.to_json(), allow_nan=False)) == (told is not None)


def test_they_are_meant_where_the_loss_falls(tmp_path: Path) -> None:
    assert learning_notes(read(tmp_path, [1e-4, 1e-4], slope=0.1)) == []
