"""Updates that hardly move some parameters beside others are told of a loss that does not fall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.learning import Learning, learning
from gradscope.presentation.reports.runs.run_facts import learning_notes


def read(folder: Path, shares: dict[str, float], *, slope: float = 0.0) -> Learning:
    """What a run says whose updates are some shares of the parameters, and of a bias that begins at zero."""
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        names = (*shares, "bias")
        history.describe({}, [TensorRow(family=family, name=name) for family in ("param", "update") for name in names])
        for step in range(21):
            numbers: dict[str, Any] = {
                "step": step, "loss": 2.3 - slope * step, "param_norm": 1.0, "grad_norm": 1.0, "update_norm": 0.05,
            }  # fmt: skip
            stats: dict[str, dict[str, float | int | None]] = {"param/bias": {"l2": 1e-9 * step}}
            stats["update/bias"] = {"l2": 1.0}
            for name, share in shares.items():
                stats |= {f"param/{name}": {"l2": 2.0}, f"update/{name}": {"l2": 2.0 * share}}
            record = StepRecord(numbers=numbers, stats=stats)
            history.write(lambda record=record: record)
    with History(folder) as history:
        return learning(history, history.steps(), history.losses())


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"0/w": 2e-7, "1/w": 1e-4, "2/w": 0.025}, "; the update of 0/w is 2e-07 of it, and that of 2/w 0.025, as"),
        ({"0/w": 0.5, "1/w": 1e-2, "2/w": 2e-5}, "; the update of 2/w is 2e-05 of it, and that of 0/w 0.5, as"),
        ({"0/w": 2e-5, "1/w": 1e-4, "2/w": 0.025}, None),
        ({"0/w": 0.0, "1/w": 1e-4, "2/w": 0.025}, None),  # a frozen one has no gradient
        ({"w0": 2e-7, "w1": 0.025}, "; the update of w0 is 2e-07 of it, and that of w1 0.025, as"),
        ({"0/w": 2e-7}, None),
        ({"0/w": 1e-3, "0/b": 2e-8, "1/w": 0.025}, None),  # the gradient of the bias is rounding
        ({"0/w": 2e-7, "0/b": 2e-8, "1/w": 0.025}, "; the update of 0/w is 2e-07 of it, and that of 1/w 0.025, as"),
    ],
)
def test_what_is_moved_least_and_most_is_told(shares: dict[str, float], told: str | None, tmp_path: Path) -> None:
    found = read(tmp_path, shares)
    text = "".join(note.text for note in learning_notes(found) if note.label == "learning")
    assert ("; the update of" in text) is (told is not None)
    assert told is None or told in text
    level: Any = found.to_json()["level"]
    assert ("uneven" in level) is (told is not None)


def test_nothing_is_told_of_a_loss_that_falls(tmp_path: Path) -> None:
    assert read(tmp_path, {"0/w": 2e-7, "2/w": 0.025}, slope=0.1).uneven is None
