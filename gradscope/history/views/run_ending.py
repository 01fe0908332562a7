"""Tells how far a run came, and where what was not finite in it began; of one that came to no step, nothing is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.reader import open_dump
from gradscope.errors import DumpError, GradscopeError
from gradscope.history.alarms.alarm_rules import NONFINITE
from gradscope.history.database.schema import TAKEN
from gradscope.history.folder.run_files import is_alarm_name, is_history_file, states_in
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm
from gradscope.naming import printable

#: A number of steps, as a text of anybody's may state one.
_NUMBER: Final = re.compile(r"[0-9]{1,15}")


def alarm_origins(history: History, alarms: Sequence[Alarm]) -> tuple[Origin, ...]:
    """Returns where what was not finite began, by the dump of the first such alarm that has one.

    Args:
        history: The run's history.
        alarms: Its alarms.

    Returns:
        The origins; empty where nothing was not finite, or no dump of it can be read any more.
    """
    for alarm in alarms:
        # The name comes from the history, which may be untrusted, and leads nowhere out of the run's folder.
        if alarm.rule == NONFINITE and alarm.folder is not None and is_alarm_name(alarm.folder):
            with suppress(GradscopeError), open_dump(history.folder / alarm.folder) as dump:
                return dump.manifest.origins
    return ()


def steps_taken(history: History, known: np.ndarray, alarms: Sequence[Alarm]) -> int:
    """Returns how many steps a run has taken, as far as its checkpoints and its history tell.

    The loop of a probe has no checkpoints, and states the number when it ends; one that was killed has taken those up
    to the last whose loss is known.

    Args:
        history: The run's history.
        known: The steps whose loss is known, in order.
        alarms: Its alarms.

    Raises:
        DumpError: What the history states is no number.
        MachineError: The folder cannot be read.
    """
    stated = history.facts.get(TAKEN, "0")
    if not _NUMBER.fullmatch(stated):
        raise DumpError(f"{printable(str(history.folder))} states as {TAKEN} {printable(stated[:40])!r}")
    saved = max(states_in(history.files), default=0)
    last = int(known[-1]) if len(known) else -1
    # A run that an alarm ends knows the loss of the step, and its checkpoint is of before it.
    undone = saved > 0 and last == saved and any(alarm.step == last for alarm in alarms)
    return max(int(stated), saved if undone else max(saved, last + 1))


def is_empty(path: Path) -> bool:
    """Returns whether a run ended before its first step.

    Args:
        path: The folder of the run.

    Raises:
        DumpError: There is none, or its history is damaged.
        MachineError: It cannot be read.
    """
    with History(path) as history:
        return _has_nothing(history)


def _has_nothing(history: History) -> bool:
    rows = len(history.step_numbers()) or len(history.losses()["step"]) or len(history.alarms())
    return not states_in(history.files) and not rows


def settle(folder: RunFolder) -> None:
    """Removes the history that was begun since a folder was locked, where nothing is recorded, as of a wrong loss.

    What was there before stays, and so does all where something else was written, such as a dump of the first step. A
    run that was to be replaced is removed only where something is recorded.

    Args:
        folder: The folder of the run, whose history is closed.
    """
    with suppress(GradscopeError, OSError):  # why the run failed is what there is to report
        with History(folder.path, as_written=True) as history:
            empty = _has_nothing(history)
        if not empty:
            folder.set_aside.remove()
        elif folder.added and all(map(is_history_file, folder.added)):
            for name in folder.added:
                (folder.path / name).unlink(missing_ok=True)
