"""Annotations of a run are its alarms and what it says of whether it learns, for the job that trained it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradscope.dump.manifest.operation_facts import Origin
from gradscope.history.history_rows import Alarm, TensorRow
from gradscope.history.views.learning import Learning
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import BAD
from gradscope.presentation.reports.origins import OF_ORIGINS, origin_annotation
from gradscope.presentation.reports.runs.alarm_words import alarm_sentence, worst_alarm
from gradscope.presentation.reports.runs.run_facts import learning_notes


def run_annotations(
    alarms: Sequence[Alarm], origins: Sequence[Origin], learning: Learning, *, tensors: Iterable[TensorRow],
    checked: frozenset[str],
) -> list[Annotation]:  # fmt: skip
    """Returns the annotations of a run; none where there is nothing to say.

    Args:
        alarms: Its alarms.
        origins: Where what was not finite began.
        learning: What it says of whether it learns.
        tensors: The tensors whose source lines are known.
        checked: The rules and words that make the command fail, whose annotations are errors.
    """
    sources = {tensor.key: tensor.source for tensor in tensors}
    worst = worst_alarm(alarms)
    # The verdict comes first, because GitHub shows only ten of a level.
    ordered = () if worst is None else (worst, *(each for each in alarms if each is not worst))
    found = [
        Annotation(
            level="error" if each.rule in checked else "warning",
            title=f"gradscope: {each.rule}",
            message=alarm_sentence(each),
            source=sources.get(each.key) if each.key else None,
        )
        for each in ordered
    ]
    level = "error" if checked & OF_ORIGINS else "warning"
    began = [origin_annotation(each, level, each.repair) for each in origins]
    lines = {(each.rule, each.why): each.source for each in learning.faults}
    told = [
        Annotation(
            level="error" if each.label in checked else "warning" if each.style == BAD else "notice",
            title=f"gradscope: {each.label}",
            message=each.text,
            source=lines.get((each.label, each.text)),
        )
        for each in learning_notes(learning)
    ]
    return [*began, *found, *told]
