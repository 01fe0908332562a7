"""Writes the file that says in an alarm's folder what the alarm is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.history.history_rows import Alarm


def write_alarms(folder: Path, alarms: Sequence[Alarm], *, loss: float | None) -> None:
    """Writes `alarm.json`.

    Args:
        folder: The alarm's folder.
        alarms: What was wrong at one step.
        loss: The loss of the step; None where it is not known.

    Raises:
        MachineError: The disk is full or fails.
    """
    listed = [
        {"rule": each.rule, "tensor": each.key, "why": each.why, "value": each.value, "limit": each.limit}
        for each in alarms
    ]
    found = {"step": alarms[0].step, "loss": None if loss is None else repr(loss), "alarms": listed}
    with machine_errors("write to", folder):
        (folder / "alarm.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
