"""Updates that point along the gradients are told, of a loss that has not fallen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gradscope.history.alarms.alarm_watch import AlarmWatch
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.updates.climbing import climb, climbing_parameters


def recorded(folder: Path, cosines: Sequence[tuple[float | None, float | None]], **facts: str) -> History:
    """A run whose step n has these cosines of the updates of a large parameter and of a small one."""
    with HistoryWriter(folder, from_step=0, facts=facts) as history:
        names = [f"{family}/{name}" for family in ("param_grad", "update") for name in "ab"]
        history.describe({}, [TensorRow(family=key.split("/")[0], name=key[-1]) for key in names])
        for step, (large, small) in enumerate(cosines):
            stats: dict[str, dict[str, float | int | None]] = {
                key: {"l2": 1.0 if key[-1] == "a" else 0.1} for key in names
            }
            stats["update/a"]["cosine"], stats["update/b"]["cosine"] = large, small
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step}, stats=stats))
    return History(folder)


@pytest.mark.parametrize(
    ("cosines", "losses", "expected"),
    [
        ([(0.9, -1.0)] * 5, [1.0, 2.0], True),
        ([(None, None), *[(0.9, 0.9)] * 4], [1.0, np.nan], True),
        ([(0.9, 1.0)] * 5, [2.0, 1.0], False),
        ([(-0.9, 1.0)] * 5, [1.0, 2.0], False),
        ([(-0.9, -1.0), *[(0.9, 0.9)] * 9], [1.0, 2.0], False),
        ([(0.9, 0.9)] * 2, [1.0, 2.0], False),
    ],
    ids=["all but the small one", "one without an update first, to NaN", "what is subtracted, as the loss falls",
         "a dual variable alone", "a momentum that was carried on", "too few"],
)  # fmt: skip
def test_a_run_climbs_where_all_updates_together_do_from_the_first_step_on(
    cosines: list[tuple[float | None, float | None]], losses: list[float], expected: bool, tmp_path: Path
) -> None:
    with recorded(tmp_path, cosines) as history:
        found = climb(history, {"step": np.arange(3), "loss": np.array([losses[0], *losses])})
        alone = climbing_parameters(history, falls=False)
        assert climbing_parameters(history, falls=True) == ()  # of fewer than 10 steps
    assert (found is not None) is expected
    opposite = {(0.9, -1.0): ("a",), (-0.9, 1.0): ("b",)}
    assert alone == next((names for pair, names in opposite.items() if pair == cosines[0] == cosines[-1]), ())
    if found is not None:
        assert (found.count, found.cosine > 0.8) == (sum(large is not None for large, _ in cosines), True)


@pytest.mark.parametrize(
    ("cosines", "affine", "alone"),
    [
        ([(0.7, -0.7)] * 12, "[]", ("a",)),
        ([(0.7, -0.7)] * 12, '["a"]', ()),
        ([(0.7, -0.7)] * 12, "{", ("a",)),
        ([(0.7, -0.7)] * 12, '{"a": 1}', ("a",)),
        ([(-0.7, -0.7), *[(0.7, -0.7)] * 12], "[]", ()),
        ([(0.7, 0.7)] * 12, "[]", ()),
    ],
    ids=["one", "a dual variable", "no JSON", "no list", "a momentum", "all"],
)
def test_parameters_that_climb_alone_are_told_of_a_loss_that_falls(
    cosines: list[tuple[float | None, float | None]], affine: str, alone: tuple[str, ...], tmp_path: Path
) -> None:
    with recorded(tmp_path, cosines, **{"affine parameters": affine}) as history:
        assert climbing_parameters(history, falls=True) == alone


@pytest.mark.parametrize(("first", "cause"), [(0.7, "so that adding them raises the loss"), (-0.7, "is too large")])
def test_a_loss_that_climbing_updates_raise_is_no_matter_of_the_rate(first: float, cause: str) -> None:
    watch = AlarmWatch({})
    for cosine in (first, 0.7):
        watch.recorded(0, {"param_grad/a": {"l2": 1.0}, "update/a": {"l2": 0.4, "cosine": cosine}}, {})
    resumed = AlarmWatch({})
    resumed.restore(watch.to_json())
    numbers = {"update_norm": 0.4, "param_norm": 1.0}
    found = [each for step in range(30) for each in resumed.step(step, {"loss": 1.0 if step < 2 else 50.0, **numbers})]
    assert [(each.rule, cause in each.why) for each in found] == [("diverging", True)]
