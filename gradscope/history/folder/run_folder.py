"""A run's folder has files of fixed names, and a lock of the one process that writes to it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.atomic_folder import made_folder
from gradscope.dump.storage.writing.partial_file import lock, say_unlocked, unlock
from gradscope.dump.storage.writing.read_files import remembered_reads
from gradscope.dump.storage.writing.set_aside import SetAside
from gradscope.dump.storage.writing.target_path import is_folder, is_one_of
from gradscope.errors import MachineError, UsageError
from gradscope.history.folder.run_files import ALARM_FILES, HISTORY, LOCK, alarms_in, is_part, is_replaced, states_in
from gradscope.naming import printable
from gradscope.naming.wording import some_of


def left_alarms_sentence(names: Sequence[str]) -> str:
    """Returns what is said of `RunFolder.left_alarms`, of one or more: one line, however many runs were replaced."""
    if len(names) == 1:
        return f"{names[0]} is of steps that the run no longer has: it stays, and is not counted"
    return f"{some_of(names)} are of steps that the run no longer has: they stay, and are not counted"


class RunFolder:
    """A `RunFolder` is locked against other writers as long as the context lasts.

    Where nothing is in it at the end that was not there before, because the request was refused or failed, neither are
    its lock and the folders that were made. A run that was to be replaced is there again where the new one came to no
    step.

    Args:
        path: The folder; it is made where it does not exist.
        writes: Whether this process writes to it. Where it is one of several on a run of which another one writes, the
            folder is neither made nor locked.

    Attributes:
        path: The absolute path of the folder.
        set_aside: The run that was there before, where `clear` has set it aside.

    Raises:
        UsageError: Another process writes to it, or the path is not a folder.
        MachineError: It cannot be made or written.
    """

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path = path.absolute()  # a model may change the working directory
        self._descriptor: int | None = None
        self._dropped: Any = None
        self._made: list[Path] = []
        self._before: set[str] = set()
        self.set_aside = SetAside(self.path, is_replaced)
        exists = is_folder(path)
        if not writes:
            return
        if exists is False:
            raise UsageError(f"{printable(str(path))} is not a folder", hint="a run is a folder: name another one")
        with machine_errors("write to", path), made_folder(self.path) as self._made:
            self._before = {each.name for each in self.path.iterdir()}
            descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with machine_errors("lock", path):
                locked = lock(descriptor)
        except BaseException:
            self._descriptor = descriptor
            self.close()
            raise
        if locked is None:
            say_unlocked(path)
        if locked is False or not os.fstat(descriptor).st_nlink:  # a lock that another process removed is none
            os.close(descriptor)
            raise UsageError(
                f"{printable(str(path))} is being written, by another process or a probe that is not closed",
                hint="wait for it, close it, or name another folder",
            )
        self._descriptor = descriptor
        # Nobody can close the probe of a function that has failed, once it is dropped.
        self._dropped = weakref.finalize(self, os.close, descriptor)
        self._dropped.atexit = False  # what is written at the end of the program comes after that
        _LOCKED.add(self)
        try:
            self.set_aside.recover()  # of a process that died
            self._before |= {each.name for each in self.path.iterdir()} - {LOCK}
        except BaseException:
            self.leave()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlocks the folder."""
        if self._descriptor is not None:
            if self in _LOCKED:
                with suppress(MachineError):  # the next process that opens the folder does it
                    self.set_aside.recover()
            self._remove_unused()
            unlock(self._descriptor)
        self.leave()

    def leave(self) -> None:
        """Gives up the lock; in a forked process, it stays with the one that forked, and does not outlast that."""
        if self._descriptor is not None:
            if self._dropped is not None:
                self._dropped.detach()
            with suppress(OSError):  # the program has closed it
                os.close(self._descriptor)
            self._descriptor = None

    def _remove_unused(self) -> None:
        with suppress(OSError):
            if LOCK not in self._before and not self.added:
                (self.path / LOCK).unlink()
                for each in reversed(self._made):
                    each.rmdir()

    @property
    def added(self) -> list[str]:
        """The names of everything but the lock that was not there when the folder was locked, or cleared."""
        ours = {LOCK, *self.set_aside.names}
        return sorted({path.name for path in self.path.iterdir()} - self._before - ours)

    @property
    def others(self) -> list[str]:
        """The names of everything in the folder that is not part of a run."""
        return sorted(path.name for path in self.path.iterdir() if not is_part(path.name))

    def clear(self, inputs: Iterable[Path] = ()) -> None:
        """Sets the history, the checkpoints, the dumps of steps, the profiles and the event files of a run aside.

        They are put back when it is closed, unless they have been removed.

        Args:
            inputs: Files that the new run reads beside those that its model has opened, which are not removed.

        Raises:
            UsageError: One of them is a checkpoint or a dump of the run.
            MachineError: They cannot be set aside.
        """
        with machine_errors("replace", self.path):
            old = [path for path in self.path.iterdir() if is_replaced(path)]
            read = (*inputs, *map(Path, remembered_reads()))
            if kept := next((path for path in old if path.suffix == ".npz" and is_one_of(path, read)), None):
                raise UsageError(
                    f"cannot replace the run in {printable(str(self.path))}: its {kept.name} is read",
                    hint="copy that file, or name another folder",
                )
            # The history first: where the process dies, the next one puts back what it took.
            self.set_aside.put(sorted(old, key=lambda path: path.name != HISTORY))
            self._before &= {each.name for each in self.path.iterdir()}

    def keep_states(self, number: int) -> None:
        """Removes all checkpoints but the last so many.

        Raises:
            MachineError: One cannot be removed.
        """
        with machine_errors("remove a checkpoint in", self.path):
            for path in list(states_in(self.path).values())[:-number]:
                path.unlink()

    def keep_alarms(self, number: int, saved: Collection[str]) -> list[str]:
        """Removes folders that alarms saved, but for the first and the last; returns the names of those removed.

        Args:
            number: How many stay: the first, which is nearest to the cause of the others, and the last ones; of one the
                last.
            saved: The names of those that count. Others are left of steps that a run took before it was continued from
                an earlier one or replaced, and stay.

        Raises:
            MachineError: One cannot be removed.
        """
        folders = [(step, path) for step, path in alarms_in(self.path) if path.name in saved]
        first = min(number - 1, 1)
        removed = [path for _, path in folders[first : max(len(folders) - number + first, first)]]
        with machine_errors("remove a folder in", self.path):
            for path in removed:
                for name in ALARM_FILES:
                    (path / name).unlink(missing_ok=True)
                path.rmdir()
        return [path.name for path in removed]

    def left_alarms(self, saved: Collection[str]) -> list[str]:
        """Returns the names of the folders of alarms that are not among those that the history has."""
        return [path.name for _, path in alarms_in(self.path) if path.name not in saved]


def _leave_in_child() -> None:
    for each in list(_LOCKED):
        each.leave()


#: The folders that this process has locked.
_LOCKED: Final = weakref.WeakSet[RunFolder]()
os.register_at_fork(after_in_child=_leave_in_child)
