"""The verdict on a run is what ended it, wherever it is among the alarms."""

from __future__ import annotations

import pytest

from gradscope.history.history_rows import Alarm, LossFault
from gradscope.history.views.learning import NOTHING_TO_SAY, Learning
from gradscope.history.views.loss_fall import NoFall
from gradscope.history.views.recorded_batches import RecordedBatches
from gradscope.history.views.updates.climbing import Climb
from gradscope.presentation.render.screen import DOUBTFUL
from gradscope.presentation.reports.runs.alarm_words import run_verdict

EARLY = Alarm(step=30, rule="update-ratio", why="is 0.2 of the parameter", key="update/w")
LATE = Alarm(step=36, rule="loss-spike", why="the loss is 16")
FATAL = Alarm(step=37, rule="nonfinite", why="the loss is inf")


@pytest.mark.parametrize(
    ("alarms", "expected"),
    [((EARLY, LATE, FATAL), "nonfinite: "), ((EARLY, LATE), "update-ratio: "), ((), "no alarm")],
)
def test_the_verdict_is_what_was_not_finite_else_the_first_alarm(alarms: tuple[Alarm, ...], expected: str) -> None:
    assert run_verdict(alarms, NOTHING_TO_SAY, recorded=9).text.startswith(expected)


@pytest.mark.parametrize("rule", ["diverging", "unbounded"])
@pytest.mark.parametrize(("step", "is_the_cause"), [(35, True), (37, True), (38, False)])
def test_it_is_why_a_number_was_not_finite_where_an_alarm_before_says_so(
    rule: str, step: int, is_the_cause: bool
) -> None:
    cause = Alarm(step=step, rule=rule, why="the loss is -1e9")
    verdict = run_verdict(
        (EARLY, LATE, *sorted((cause, FATAL), key=lambda each: each.step)), NOTHING_TO_SAY, recorded=9
    )
    assert verdict.text.startswith(f"{rule if is_the_cause else 'nonfinite'}: ")


def test_a_verdict_without_an_alarm_names_the_lines_to_look_at() -> None:
    faults = (LossFault("broadcast", "input/y ..."), LossFault("broadcast", "input/z ..."))
    learning = Learning(faults=faults, climb=Climb(count=9, cosine=0.5))
    assert run_verdict((), learning, recorded=9).text == "no alarm; look at 'broadcast' and 'climbing'"
    assert run_verdict((EARLY,), learning, recorded=9).text.startswith("update-ratio: ")


@pytest.mark.parametrize(("last", "verb"), [(9.0, "risen"), (1.0, "hardly fallen")])
def test_it_says_what_the_loss_has_done_that_has_not_fallen(last: float, verb: str) -> None:
    level = NoFall(count=9, start=1.0, first=1.0, second=1.0, last=last, ratio=None)
    verdict = run_verdict((), Learning(level=level), recorded=9)
    assert (verdict.text, verdict.style) == (f"no alarm, but the loss has {verb}; look at 'learning'", DOUBTFUL)


def test_it_says_that_all_recorded_batches_are_one() -> None:
    verdict = run_verdict((), Learning(batches=RecordedBatches(same=True)), recorded=9)
    assert (verdict.text, verdict.style) == ("no alarm; all recorded batches are one", DOUBTFUL)


def test_of_a_run_without_a_recorded_step_nothing_is_known() -> None:
    verdict = run_verdict((), NOTHING_TO_SAY, recorded=0)
    assert (verdict.text, verdict.style) == ("no step is recorded", DOUBTFUL)
