"""Writes a history from a thread of its own, one transaction a step."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from json import dumps
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.errors import MachineError
from gradscope.history.database.schema import ALL_PARAMETERS, LOSSES, NOISE, STATS, STEPS
from gradscope.history.database.untrusted_database import stored_shape
from gradscope.history.database.writable_database import OpenFiles, insertion, opened_to_write, transaction
from gradscope.history.database.writing_thread import WritingThread
from gradscope.history.folder.run_files import HISTORY
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_rows import Alarm, Smoothed, StepRecord, TensorRow
from gradscope.history.renamed_tensors import without_roots
from gradscope.naming import printable

_Result = TypeVar("_Result")

#: Steps that may wait to be written; the next one waits for the first of them.
_MOST_WAITING: Final = 8

#: Seconds after which losses of steps that are not recorded are written, also where no step is.
_LOSSES_SECONDS: Final = 1.0


class HistoryWriter:
    """Writes the history of a run. It is a context manager; the folder has to be locked.

    Args:
        folder: The folder of the run; a history that is there is continued.
        from_step: Rows of this step and of later ones are removed.
        facts: Facts about the run that a new history has from its first moment on.
        locked: What keeps the folder locked: it lasts as long as there is something to write.

    Raises:
        MachineError: The file cannot be written.
    """

    def __init__(
        self, folder: Path, *, from_step: int, facts: Mapping[str, str], locked: RunFolder | None = None
    ) -> None:
        self._locked = locked
        self._path = folder / HISTORY
        self._ids: dict[str, int] = {}
        self._waiting: list[Future[None]] = []
        self._losses: deque[tuple[int, float]] = deque()
        self._losses_due = time.monotonic() + _LOSSES_SECONDS
        self._thread = WritingThread("history")
        self._open_files = OpenFiles(self._path)
        self._connection = self._done(opened_to_write, self._path, dict(facts))
        self._open_files.begin()
        self._file = self._done(self._path.stat)
        self.forget(from_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process can write it: one that was forked cannot."""
        return self._thread.is_of_this_process

    def require_this_process(self) -> None:
        """Refuses to write it in a process that was forked.

        Raises:
            UsageError: This is one.
        """
        self._thread.require_this_process()

    def close(self) -> None:
        """Waits until every step is on the disk, and makes the history one file.

        Raises:
            MachineError: The disk is full or fails.
        """
        try:
            self.flush()
            self._done(self._to_one_file)
        finally:
            self._end()

    def _end(self) -> None:
        self._thread.submit(self._guarded, self._write_losses)  # of a failed run; its own error is the one to report
        self._thread.submit(self._open_files.close, self._connection).result()
        self._thread.end()

    def describe(self, facts: Mapping[str, str], tensors: Iterable[TensorRow] = ()) -> None:
        """Writes facts about the run, and the tensors that it observes; earlier ones of the same names are replaced.

        Raises:
            MachineError: The disk is full or fails.
        """
        self._done(self._describe, dict(facts), list(tensors))

    def write(self, record: Callable[[], StepRecord | None]) -> None:
        """Writes a step soon.

        Args:
            record: Returns its numbers, or None where nothing is to be written. It is called in the writer's thread,
                and may wait for the device there.

        Raises:
            MachineError: The disk is full or fails, now or when an earlier step was written.
        """
        while len(self._waiting) >= _MOST_WAITING or (self._waiting and self._waiting[0].done()):
            self._waiting.pop(0).result()
        self._waiting.append(self._thread.submit(self._guarded, self._write, record))

    def loss(self, step: int, loss: float) -> None:
        """Writes the loss of a step that is not recorded: together with the next one that is, or about a second later.

        Args:
            step: The step.
            loss: Its loss.
        """
        self._losses.append((step, loss))
        if time.monotonic() >= self._losses_due:
            self._losses_due = time.monotonic() + _LOSSES_SECONDS
            self._waiting.append(self._thread.submit(self._guarded, self._write_losses))

    def alarm(self, alarm: Alarm) -> None:
        """Writes an alarm.

        Raises:
            MachineError: The disk is full or fails.
        """
        self.flush()
        self._done(self._alarm, alarm)

    def alarm_folders(self) -> set[str]:
        """Returns the names of the folders that its alarms saved.

        Raises:
            MachineError: The disk fails.
        """
        return self._done(self._alarm_folders)

    def release(self, folder: str) -> None:
        """Writes that the folder of an alarm is no longer there.

        Raises:
            MachineError: The disk is full or fails.
        """
        self._done(self._release, folder)

    def smoothed_noise(self) -> dict[str | None, Smoothed]:
        """Returns the moving averages after what is written, by the key of a parameter's gradient; of all by None.

        Raises:
            MachineError: The disk fails.
        """
        self.flush()
        return self._done(self._smoothed_noise)

    def forget(self, from_step: int) -> None:
        """Removes what was written of a step and of all later ones.

        Raises:
            MachineError: The disk is full or fails.
        """
        self.flush()
        self._done(self._forget, from_step)

    def flush(self) -> None:
        """Waits until every step is on the disk.

        Raises:
            MachineError: The disk is full or fails.
        """
        if self._losses:
            self._waiting.append(self._thread.submit(self._guarded, self._write_losses))
        while self._waiting:
            self._waiting.pop(0).result()

    def _done(self, action: Callable[..., _Result], *arguments: object) -> _Result:
        return self._thread.submit(self._guarded, action, *arguments).result()

    def _guarded(self, action: Callable[..., _Result], *arguments: object) -> _Result:
        self._open_files.require()
        try:
            with machine_errors("write to", self._path):
                return action(*arguments)
        except sqlite3.Error as error:
            raise MachineError(
                f"cannot write to {printable(str(self._path))}: {error}", hint="check free space and permissions"
            ) from error

    def _require_file(self) -> None:
        """Refuses to write into a history that has been removed, which SQLite would do without a word."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._file, self._path.stat()):
                return
        raise MachineError(f"{printable(str(self._path))} has been removed, or replaced, while the run was writing it")

    def _forget(self, from_step: int) -> None:
        with transaction(self._connection) as connection:
            for table in ("steps", "losses", "stats", "histograms", "noise", "alarms"):
                connection.execute(f"DELETE FROM {table} WHERE step >= ?", (from_step,))  # noqa: S608 - our own names

    def _to_one_file(self) -> None:
        """Makes the history one file that can be copied, unless a process reads it, which keeps the write-ahead log."""
        self._require_file()
        self._connection.execute("PRAGMA busy_timeout=0")
        with suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA journal_mode=DELETE")
        self._open_files.begin()  # SQLite has closed those of the log

    def _describe(self, facts: Mapping[str, str], tensors: list[TensorRow]) -> None:
        with transaction(self._connection) as connection:
            connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?)", list(facts.items()))
            known = connection.execute("SELECT id, family, name, shape, dtype FROM tensors").fetchall()
            rows = [_row(family, name, shape, dtype) for _, family, name, shape, dtype in known]
            self._ids = {row.key: number for row, (number, *_) in zip(rows, known, strict=True)}
            # Of a run that an older version began, curves go on under the name that a layer has now.
            renamed = without_roots({row.key: row for row in rows}, {row.key: row for row in tensors})
            self._ids |= {new: self._ids.pop(old) for old, new in renamed.items()}
            for tensor in tensors:
                number = self._ids.setdefault(tensor.key, len(self._ids))
                shape = None if tensor.shape is None else dumps(tensor.shape)
                row = (number, tensor.family, tensor.name, shape, tensor.dtype, tensor.layer, tensor.source)
                connection.execute("INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _write(self, record: Callable[[], StepRecord | None]) -> None:
        if (made := record()) is None:
            self._write_losses()
            return
        self._require_file()
        step = made.numbers["step"]
        rows = ((step, self._ids[key], *map(stats.get, STATS)) for key, stats in made.stats.items())
        with transaction(self._connection) as connection:
            connection.execute(insertion("steps", len(STEPS)), tuple(map(made.numbers.get, STEPS)))
            connection.executemany(insertion("stats", len(STATS) + 2), rows)
            blobs = ((step, self._ids[key], each.to_bytes()) for key, each in made.histograms.items())
            connection.executemany(insertion("histograms", 3), blobs)
            noise = (
                (step, ALL_PARAMETERS if key is None else self._ids[key], *map(each.get, NOISE))
                for key, each in made.noise.items()
            )
            connection.executemany(insertion("noise", len(NOISE) + 2), noise)
            self._insert_losses(connection)
            if "loss" in made.numbers:
                connection.execute(insertion("losses", len(LOSSES)), tuple(map(made.numbers.get, LOSSES)))

    def _write_losses(self) -> None:
        if self._losses:
            with transaction(self._connection) as connection:
                self._insert_losses(connection)

    def _insert_losses(self, connection: sqlite3.Connection) -> None:
        losses = [self._losses.popleft() for _ in range(len(self._losses))]
        connection.executemany(insertion("losses", len(LOSSES)), losses)

    def _smoothed_noise(self) -> dict[str | None, Smoothed]:
        # Beside max(step), SQLite takes the other columns from the row of that step.
        rows = self._connection.execute(
            "SELECT max(step), family, name, variance_smoothed, signal_smoothed, count(*) FROM noise "
            "LEFT JOIN tensors ON id = tensor WHERE variance_smoothed IS NOT NULL GROUP BY tensor"
        )
        return {
            None if family is None else f"{family}/{name}": Smoothed(variance=variance, signal=signal, count=count)
            for _, family, name, variance, signal, count in rows
        }

    def _alarm(self, alarm: Alarm) -> None:
        tensor = None if alarm.key is None else self._ids.get(alarm.key)
        row = (alarm.step, alarm.rule, tensor, alarm.value, alarm.limit, alarm.why, alarm.folder)
        with transaction(self._connection) as connection:
            connection.execute(insertion("alarms", len(row)), row)

    def _alarm_folders(self) -> set[str]:
        return {folder for (folder,) in self._connection.execute("SELECT folder FROM alarms WHERE folder IS NOT NULL")}

    def _release(self, folder: str) -> None:
        with transaction(self._connection) as connection:
            connection.execute("UPDATE alarms SET folder = NULL WHERE folder = ?", (folder,))


def _row(family: str, name: str, shape: str | None, dtype: str | None) -> TensorRow:
    return TensorRow(family=family, name=name, shape=stored_shape(shape), dtype=dtype)
