"""Alarm notes state an alarm: what a dump of its step says, and the file in its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.manifest.zero_reasons import RECEIVES_ZEROS
from gradscope.dump.record import Json
from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.history.alarms.alarm_rules import DIVERGING, NONFINITE, ZERO_GRADIENT
from gradscope.history.history_rows import Alarm
from gradscope.stats import find

#: The kind of the reason of a gradient that names the rectifier itself.
_DEAD_UNITS: Final = "dead units"


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
    number = loss if loss is None or math.isfinite(loss) else repr(loss)  # JSON has no NaN
    found = {"step": alarms[0].step, "loss": number, "alarms": listed}
    with machine_errors("write to", folder):
        (folder / "alarm.json").write_text(dumps(found, indent=2) + "\n", encoding="utf-8")


def alarm_facts(alarms: Sequence[Alarm]) -> dict[str, Json]:
    """Returns what the dump of a step states of the alarms that were raised there, beside what it finds itself.

    Args:
        alarms: What was wrong at the step.
    """
    named = ((each, "" if each.key is None else f"{each.key} ") for each in alarms)
    return {"alarms": [f"{each.rule}: {name}{each.why}" for each, name in named]}


def explained(alarm: Alarm, manifest: Manifest) -> Alarm:
    """Returns an alarm with what a dump of its step says about it: what is not finite, or why a gradient is zero.

    A learning rate is also too large where inputs are.
    """
    if alarm.rule == NONFINITE:
        return _nonfinite_alarm(alarm, manifest)
    if alarm.rule == DIVERGING:
        return _with_inputs(alarm, manifest)
    if ZERO_GRADIENT not in alarm.why or alarm.key is None:
        return alarm
    name = naming.split_key(alarm.key)[1]
    causes = (each.why for each in manifest.causes if (each.family, each.name) == (naming.PARAM_GRAD, name))
    why = next(causes, None)
    if why is None:
        return alarm
    found = replace(alarm, why=alarm.why.replace(ZERO_GRADIENT, f"{ZERO_GRADIENT}, {why}"))
    return found if _DEAD_UNITS in why and not why.endswith(RECEIVES_ZEROS) else _with_dead_units(found, manifest)


def _with_dead_units(alarm: Alarm, manifest: Manifest) -> Alarm:
    """Returns an alarm about a gradient of zero with the first dead rectifier, whose zeros a layer behind it reads."""
    dead = next((each for each in find(manifest) if each.rule == "dead"), None)
    if dead is None:
        return alarm
    return replace(alarm, why=f"{alarm.why}; {naming.key_of(dead.family, dead.name)} {dead.why}")


def _nonfinite_alarm(alarm: Alarm, manifest: Manifest) -> Alarm:
    loss = manifest.loss
    if loss is not None and not math.isfinite(loss):
        return Alarm(step=alarm.step, rule=NONFINITE, why=f"the loss is {loss}")
    bad = [entry for entry in manifest.entries
           if entry.family == naming.PARAM_GRAD and (entry.stats.get("nan") or entry.stats.get("inf"))]  # fmt: skip
    if not bad:
        # Only the update is not finite, or the dump's program, which adds in another order than the step, stays below
        # the largest number.
        return alarm
    entry = bad[0]
    why = f"has {_nonfinite_elements(entry.stats)}"
    return Alarm(step=alarm.step, rule=NONFINITE, why=why, key=naming.key_of(entry.family, entry.name))


def _with_inputs(alarm: Alarm, manifest: Manifest) -> Alarm:
    found = (each for each in find(manifest) if each.family == naming.INPUT)
    inputs = "; ".join(f"{naming.key_of(each.family, each.name)} {each.why}" for each in found)
    return replace(alarm, why=f"{alarm.why}; {inputs}") if inputs else alarm


def _nonfinite_elements(stats: Mapping[str, Json]) -> str:
    number = sum(value for name in ("nan", "inf") if isinstance(value := stats.get(name), int))
    return f"{number:,} elements that are not finite" if number > 1 else "1 element that is not finite"
