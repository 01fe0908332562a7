"""Alarms are written in words, and as JSON, with the verdict on a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.history.alarms.alarm_rules import DIVERGING, NONFINITE, UNBOUNDED, suspects_batch
from gradscope.history.history_rows import Alarm
from gradscope.history.views.learning import Learning
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import BAD, DOUBTFUL, GOOD
from gradscope.presentation.reports.runs.run_facts import learning_notes


def alarm_sentence(alarm: Alarm) -> str:
    """Returns an alarm in words."""
    subject = "" if alarm.key is None else f"{alarm.key} "
    saved = "" if alarm.folder is None else f"; the state before it and its batch are in {alarm.folder}"
    batch = "; no observed tensor deviates, so look at that batch" if suspects_batch(alarm) else ""
    return f"at step {alarm.step} {subject}{alarm.why}{saved}{batch}"


def alarm_json(alarm: Alarm) -> dict[str, Json]:
    """Returns an alarm as JSON; what it lacks is left out."""
    family, name = (None, None) if alarm.key is None else naming.split_key(alarm.key)
    facts: dict[str, Json] = {
        "step": alarm.step, "rule": alarm.rule, "family": family, "name": name, "why": alarm.why,
        "value": alarm.value, "limit": alarm.limit, "folder": alarm.folder,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}


def run_verdict(alarms: Sequence[Alarm], learning: Learning, *, recorded: int) -> Note:
    """Returns the verdict on a run: why it ended, what was not finite, its first alarm, or that there was none.

    Args:
        alarms: Its alarms.
        learning: What it says of whether it learns, to whose lines a verdict without an alarm refers.
        recorded: How many steps are recorded: of none, nothing is known.
    """
    # What is not finite ends a run, and is what a reader comes for; the alarms before it are listed, too.
    first = worst_alarm(alarms)
    if first is not None:
        return Note(label="verdict", text=f"{first.rule}: {alarm_sentence(first)}", style=BAD)
    told = dict.fromkeys(each.label for each in learning_notes(learning))
    same = "; all recorded batches are one" if learning.batches.same else ""
    look = f"; look at {' and '.join(map(repr, told))}" if told else ""
    found = "no alarm" if recorded else "no step is recorded"
    found += "" if learning.left_out is None else ", but no recorded step made an update"
    found += "" if learning.level is None else f", but the loss has {learning.level.verb}"
    return Note(
        label="verdict",
        text=f"{found}{same}{look}",
        style=GOOD if recorded and not (told or same or learning.left_out) else DOUBTFUL,
    )


def worst_alarm(alarms: Sequence[Alarm]) -> Alarm | None:
    """Returns the alarm that the verdict on a run states; None without alarms."""
    # That a learning rate is too large, or the loss has no lower bound, is why a number is not finite at that step or
    # behind it.
    fatal = [each for each in alarms if each.rule == NONFINITE]
    end = fatal[0].step if fatal else math.inf
    causes = (each for each in alarms if each.rule in (DIVERGING, UNBOUNDED) and each.step <= end)
    return next(causes, next(iter((*fatal, *alarms)), None))
