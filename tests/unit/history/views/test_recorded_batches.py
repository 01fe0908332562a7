"""A run says that its recorded batches are one, and that its examples come sorted by a label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.recorded_batches import RecordedBatches, goes_round, is_ordered, recorded_batches

RNG = np.random.default_rng(3)
FEW, MANY = RNG.normal(size=(16, 4)), RNG.normal(size=(70, 16, 4))
LABELS = RNG.integers(0, 5, size=(70, 16))


def read(folder: Path, made: Callable[[int], dict[str, np.ndarray]], *, steps: int = 7) -> RecordedBatches:
    """What is unusual in the batches of a run that records every tenth step."""
    rows = [TensorRow(family="input", name=name, shape=x.shape, dtype=str(x.dtype)) for name, x in made(0).items()]
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        history.describe({}, rows)
        for step in range(0, 10 * steps, 10):
            stats: dict[str, dict[str, float | int | None]] = {
                f"input/{name}": {
                    "l2": float(np.linalg.norm(x.ravel())), "mean": float(x.mean()), "std": float(x.std()),
                    "amax": float(np.abs(x).max()), "zeros": int((x == 0).sum()),
                }
                for name, x in made(step).items()
            }  # fmt: skip
            record = StepRecord(numbers={"step": step, "loss": 1.0}, stats=stats)
            history.write(lambda record=record: record)
    with History(folder) as history:
        return recorded_batches(history)


@pytest.mark.parametrize(
    ("made", "steps", "same"),
    [
        (lambda _: {"x": FEW, "mask": np.ones(16)}, 7, True),
        (lambda _: {"x": FEW}, 2, False),
        (lambda step: {"x": MANY[step]}, 7, False),
        (lambda step: {"x": FEW, "label": LABELS[step]}, 7, False),
        (lambda step: {"x": FEW, "key": LABELS[step, :2].astype(np.uint32)}, 7, True),  # of the dropout
        (lambda step: {"x": np.roll(np.eye(16), step, 1)}, 7, False),  # codes have one set of numbers
        (lambda step: {"x": MANY[step].argsort(1)}, 7, False),  # and so have permutations
        (lambda _: {"x": (FEW > 0.3).astype(float)}, 7, True),
        (lambda _: {"mask": np.ones(16)}, 7, False),  # it tells no batch from another
    ],
)
def test_the_batches_are_one(
    made: Callable[[int], dict[str, np.ndarray]], steps: int, same: bool, tmp_path: Path
) -> None:
    assert read(tmp_path, made, steps=steps) == RecordedBatches(same=same)


def _label(value: int) -> np.ndarray:
    return np.full(16, value)


def _sorted_data(sizes: list[int], size: int) -> Callable[[int], np.ndarray]:
    """The labels of a batch of sorted examples, of some number of each class, in as many passes as needed."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return lambda step: labels[np.arange(step * size, (step + 1) * size) % len(labels)]


def _groups(values: list[int]) -> Callable[[int], np.ndarray]:
    chosen = np.random.default_rng(5).choice(values, 1000)
    return lambda step: _label(chosen[step])


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (lambda step: _label(step // 30), (0, 6)),
        (lambda step: _label([7, 7, 7, 3, 3, 1, 1][step // 10 % 7]), None),  # a second time in another way
        (lambda step: _label(step > 30).astype(bool), (0, 1)),
        (_sorted_data([60] * 10, 32), (0, 9)),
        (_sorted_data([100, 30, 200, 50, 80, 20], 16), (0, 2)),  # at three places of each pass
        (_sorted_data([300, 300, 300], 16), (0, 2)),
        (_sorted_data([300, 300], 16), None),  # in several passes, two classes may come in any order
        (lambda _: _label(4), None),  # the data have one class
        (lambda step: LABELS[step % 70], None),
        (lambda step: _label(step // 30).astype(np.float32), None),  # as a weight by a schedule
        (lambda step: _label(step + 1), None),  # the number of the step
        (lambda step: _label(step // 30)[:4], None),
        (lambda step: np.where(np.arange(16) < 12, step // 30, 9), None),
        (_groups([5, 12]), None),
        (_groups([5, 7, 12]), None),
        (_groups([4, 8, 16, 32, 64]), None),
    ],
)
def test_the_examples_are_sorted_by_a_label(
    label: Callable[[int], np.ndarray], told: tuple[int, int] | None, tmp_path: Path
) -> None:
    found = read(tmp_path, lambda step: {"x": MANY[step % 70], "label": label(step)}, steps=20)
    assert [(each.name, each.steps) for each in found.sorted] == ([] if told is None else [("label", 20)])
    assert told is None or (found.sorted[0].least, found.sorted[0].most) == told


def test_a_few_steps_show_no_order(tmp_path: Path) -> None:
    found = read(tmp_path, lambda step: {"x": MANY[step], "label": _label(step // 30)}, steps=7)
    assert found == RecordedBatches()


@pytest.mark.slow
def test_groups_in_any_order_are_hardly_ever_sorted() -> None:
    rng, steps = np.random.default_rng(8), 10.0 * np.arange(15)
    for count in (2, 3, 5, 10):
        runs = [is_ordered(steps, 7.0 * rng.integers(0, count, len(steps))) for _ in range(2000)]
        assert sum(runs) <= 8, count


def test_an_input_of_its_own_sorts_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, lambda step: {"task": _label(step // 30)}) == RecordedBatches()


@pytest.mark.parametrize("classes", [3, 5, 10])
@pytest.mark.parametrize("every", [1, 3, 5])
def test_sorted_examples_go_round_in_several_passes(classes: int, every: int) -> None:
    labels = np.sort(np.random.default_rng(0).integers(0, classes, 2000)).reshape(40, 50)
    recorded = labels[np.arange(0, 160, every) % 40]
    means, deviations = recorded.mean(1), recorded.std(1)
    assert goes_round(means, deviations)
    assert not goes_round(means[::-1], deviations[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 3, 4, 10])
@pytest.mark.parametrize("share", [None, 0.8])
def test_groups_in_any_order_hardly_ever_go_round(groups: int, share: float | None) -> None:
    rng = np.random.default_rng(0)
    each = None if share is None else [share] + [(1 - share) / (groups - 1)] * (groups - 1)
    drawn = rng.choice(groups, (2000, 40), p=each).astype(float)
    assert sum(goes_round(means, np.zeros(40)) for means in drawn) <= 4


def test_a_batch_of_the_last_class_and_the_first_is_left_out() -> None:
    means, deviations = np.array([0, 1, 2, 3, 1.5] * 4, float), np.array([0, 0, 0, 0, 1.5] * 4)
    assert goes_round(means, deviations)
    assert not goes_round(means, np.zeros(20))
