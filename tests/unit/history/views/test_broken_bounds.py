"""A run says that integers of its batches are beyond what they look up, and not that labels stand for none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.history.database.schema import BOUNDS
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.broken_bounds import BrokenBound, broken_bounds

LABELS, COUNT = ["y", "classes", 4, None, "model.py:7"], 16
WORDS = ["y", "rows", 4, "embed", None]


def read(folder: Path, bounds: object, largest: list[float], zeros: int = 0) -> tuple[BrokenBound, ...]:
    """What a run says that recorded these largest integers, step for step, so many of which are 0."""
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        history.describe({BOUNDS: json.dumps(bounds)}, [TensorRow(family="input", name="y", shape=(COUNT,), dtype="i")])
        for step, amax in enumerate(largest):
            record = StepRecord(numbers={"step": step}, stats={"input/y": {"amax": amax, "zeros": zeros}})
            history.write(lambda record=record: record)
    with History(folder) as history:
        return broken_bounds(history)


def test_labels_from_one(tmp_path: Path) -> None:
    broken = BrokenBound(name="y", looked_up="classes", rows=4, most=4, source="model.py:7")
    assert read(tmp_path, [LABELS], [3, 4]) == (broken,)


@pytest.mark.parametrize(
    ("largest", "zeros"),
    [
        ([3, 4], 1),  # 4 stands for none
        ([3, 255], 0),
        ([3, 3], 0),
        ([4], 0),  # too few to say that none is 0
        ([], 0),
    ],
)
def test_labels_that_keep_to_their_classes(largest: list[float], zeros: int, tmp_path: Path) -> None:
    assert read(tmp_path, [LABELS], largest, zeros) == ()


@pytest.mark.parametrize(("largest", "is_broken"), [([3, 9, 2], True), ([4], True), ([3, 3], False)])
def test_words_beyond_a_table(largest: list[float], is_broken: bool, tmp_path: Path) -> None:
    broken = BrokenBound(name="y", looked_up="rows", rows=4, most=int(max(largest)), table="embed")
    assert read(tmp_path, [WORDS], largest, zeros=1) == ((broken,) if is_broken else ())


@pytest.mark.parametrize(
    "stated", [[], {}, 1, [1], [["y"]], [["y", "rows", "4", None, None]], [["x", *WORDS[1:]]],
               [["y", "cols", 4, None, None]], [["y", "rows", 4, 1, None]], [["y", "rows", 4, None, 1]]]
)  # fmt: skip
def test_what_a_history_of_a_stranger_states(stated: object, tmp_path: Path) -> None:
    assert read(tmp_path, stated, [9, 9, 9]) == ()


@pytest.mark.parametrize("largest", [[float("inf")], [float("nan")]])
def test_statistics_of_a_stranger_that_are_no_numbers(largest: list[float], tmp_path: Path) -> None:
    assert read(tmp_path, [WORDS], largest) == ()
