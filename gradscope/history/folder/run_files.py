"""The files in the folder of a run have fixed names."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from gradscope.dump.storage.writing.set_aside import folder_aside_of
from gradscope.naming import printable

HISTORY: Final = "history.sqlite"

#: What an alarm saves: the state before the step, its batch, a dump of it, and the alarm itself.
ALARM_FILES: Final = ("state.npz", "batch.npz", "dump.npz", "alarm.json")
#: How the names of TensorBoard's event files begin.
_EVENTS: Final = "events.out.tfevents."

LOCK: Final = ".lock"
_STATE: Final = re.compile(r"state-(\d{6,})\.npz")
_STEP: Final = re.compile(r"step-(\d{6,})\.npz")
_TRACE: Final = re.compile(r"trace-(\d{6,})")
_ALARM: Final = re.compile(r"alarm-(\d{6,})")
_COMPANIONS: Final = ("-wal", "-shm", "-journal")


def is_run(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is the folder of a run: one that has a history."""
    with suppress(OSError, ValueError):  # ValueError: a NUL character
        return bool(os.fspath(path)) and (files_of(Path(path)) / HISTORY).exists()  # "" is not the current folder
    return False


def files_of(folder: Path) -> Path:
    """Returns where the history and the states of a run are: of one that is being replaced until a step is taken."""
    return folder_aside_of(folder, HISTORY) or folder


def folder_hint(path: Path) -> str | None:
    """Returns which folder to name in place of the history in it; None for any other path."""
    if path.name != HISTORY or not is_run(path.parent):
        return None
    return f"name the folder of the run, {printable(str(path.parent))}, and not its history"


def state_path(folder: Path, steps: int) -> Path:
    """Returns the path of the checkpoint after a number of steps."""
    return folder / f"state-{steps:06}.npz"


def is_alarm_name(name: str) -> bool:
    """Returns whether a name is that of a folder for what an alarm saves."""
    return _ALARM.fullmatch(name) is not None


def alarm_path(folder: Path, step: int) -> Path:
    """Returns the path of the folder for what an alarm at a step saves."""
    return folder / f"alarm-{step:06}"


def dump_path(folder: Path, step: int) -> Path:
    """Returns the path of the dump of a step."""
    return folder / f"step-{step:06}.npz"


def trace_path(folder: Path, step: int) -> Path:
    """Returns the path of the folder for the profile of a step."""
    return folder / f"trace-{step:06}"


def states_in(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints of a run by the number of steps before them, in order."""
    found = ((_STATE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match is not None))


def alarms_in(folder: Path) -> list[tuple[int, Path]]:
    """Returns the folders that alarms of a run saved, with their steps, in order."""
    found = ((_ALARM.fullmatch(path.name), path) for path in folder.iterdir() if not path.is_symlink())
    return sorted((int(match[1]), path) for match, path in found if match is not None)


def written_at(folder: Path) -> tuple[tuple[int, int], ...]:
    """Returns sizes and times of the files of a history, which change when it is written."""
    found: list[tuple[int, int]] = []
    for suffix in ("", "-wal", "-journal"):  # readers change the shared memory, too
        with suppress(OSError):
            facts = (folder / f"{HISTORY}{suffix}").stat()
            found.append((facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def is_history_file(name: str) -> bool:
    """Returns whether a name is that of a history, of what SQLite keeps beside it, or of an event file."""
    return name.startswith(_EVENTS) or name in {HISTORY, *(f"{HISTORY}{suffix}" for suffix in _COMPANIONS)}


def event_files_in(folder: Path) -> list[Path]:
    """Returns TensorBoard's event files in a folder."""
    return sorted(folder.glob(f"{_EVENTS}*"))


def is_replaced(path: Path) -> bool:
    """Returns whether a path is that of what a new run replaces; what alarms saved stays."""
    if _TRACE.fullmatch(path.name):
        return path.is_dir() and not path.is_symlink()
    return is_history_file(path.name) or any(kind.fullmatch(path.name) for kind in (_STATE, _STEP))


def is_part(name: str) -> bool:
    """Returns whether a name is that of a part of a run."""
    kinds = (_STATE, _STEP, _TRACE, _ALARM)
    ours = name == LOCK or name.startswith(".gradscope-") or is_history_file(name)
    return ours or any(kind.fullmatch(name) for kind in kinds)
