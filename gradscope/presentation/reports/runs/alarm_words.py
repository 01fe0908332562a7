"""Alarms in words, and as JSON."""

from __future__ import annotations

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.history.history_rows import Alarm


def alarm_sentence(alarm: Alarm) -> str:
    """Returns an alarm in words."""
    subject = "" if alarm.key is None else f"{alarm.key} "
    saved = "" if alarm.folder is None else f"; the state before it and its batch are in {alarm.folder}"
    return f"at step {alarm.step} {subject}{alarm.why}{saved}"


def alarm_json(alarm: Alarm) -> dict[str, Json]:
    """Returns an alarm as JSON; what it lacks is left out."""
    family, name = (None, None) if alarm.key is None else naming.split_key(alarm.key)
    facts: dict[str, Json] = {
        "step": alarm.step, "rule": alarm.rule, "family": family, "name": name, "why": alarm.why,
        "value": alarm.value, "limit": alarm.limit, "folder": alarm.folder,
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}
