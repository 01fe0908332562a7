"""Reads a history that anybody may have written.

The file is opened read-only. Its schema has to be the statements of `schema.TABLES`, letter by letter, before a table
is read; extensions are off, every value is checked for its type, and a query ends where it takes more work than a
sound file of that size could cause.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from gradscope.dump.storage.storage_errors import located
from gradscope.errors import DumpError, MissingKeyError, UsageError
from gradscope.history.database.schema import ALL_PARAMETERS, NOISE, STATS, STEPS
from gradscope.history.database.untrusted_database import (
    WORK_UNIT,
    is_strange,
    opened,
    reading,
    require_schema,
    stored_shape,
)
from gradscope.history.history_rows import Alarm, TensorRow
from gradscope.history.run_folder import HISTORY, folder_hint, is_run
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import printable
from gradscope.naming.patterns import nearest_hint

#: Rows that are objects at the same time.
_ROWS_AT_ONCE: Final = 4_096


class History:
    """A `History` is that of a run, opened for reading. It is a context manager.

    Args:
        folder: The folder of the run.

    Attributes:
        folder: The same.
        facts: What the run states about itself.
        tensors: The tensors that it observes, by number, in the order of the step.

    Raises:
        DumpError: There is none, or it is damaged or not one that gradscope writes.
        MachineError: It cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not is_run(folder):
            shown = printable(str(folder))
            hint = folder_hint(folder) or "'gradscope train' makes one"
            raise DumpError(f"{shown} is no run: it has no history", hint=hint)
        self.folder = folder
        self._path = folder / HISTORY
        self._work = 0
        with located(str(self._path)):
            self._connection, self._most_work = opened(self._path)
        self._connection.set_progress_handler(self._worked, WORK_UNIT)
        try:
            with reading(self._path, "it is not a history that can be read"):
                require_schema(self._connection)
                self.facts = {str(key): str(value) for key, value in self._rows("run", ("key", "value"), str)}
                self.tensors = dict(self._tensor_rows())
        except DumpError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def steps(self) -> dict[str, np.ndarray]:
        """Returns what was recorded of each step: by column an array, NaN where a value is missing.

        Raises:
            DumpError: The history is damaged.
        """
        return self._columns("steps", tuple(STEPS), "ORDER BY step")

    def number_of(self, key: str) -> int:
        """Returns the number of a tensor.

        Raises:
            MissingKeyError: The run observes none of that key; the hint has the nearest.
        """
        numbers = {tensor.key: number for number, tensor in self.tensors.items()}
        if key not in numbers:
            raise MissingKeyError(f"the run has no tensor {printable(key)}", hint=nearest_hint(key, numbers))
        return numbers[key]

    def stats_of(self, number: int) -> dict[str, np.ndarray]:
        """Returns the statistics of a tensor over time: by column an array, and `step`; NaN where a value is missing.

        Raises:
            DumpError: The history is damaged.
        """
        return self._columns("stats", ("step", *STATS), "WHERE tensor = ? ORDER BY step", number)

    def series(self, number: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the steps and the values of one statistic of a tensor.

        Raises:
            UsageError: There is no such statistic.
            DumpError: The history is damaged.
        """
        _require_column(name)
        found = self._columns("stats", ("step", name), "WHERE tensor = ? ORDER BY step", number)
        return found["step"], found[name]

    def stats_at(self, step: int) -> dict[int, dict[str, float | int]]:
        """Returns the statistics of each tensor at a step, by its number; a missing value has no key.

        Raises:
            DumpError: The history is damaged.
        """
        with reading(self._path):
            rows = self._rows("stats", ("tensor", *STATS), float, "WHERE step = ? ORDER BY tensor", step)
        return {
            int(number): {name: value for name, value in zip(STATS, values, strict=True) if value is not None}
            for number, *values in rows
            if number is not None
        }

    def columns(self, names: Sequence[str], from_step: int = 0) -> dict[int, dict[str, np.ndarray]]:
        """Returns statistics of every tensor over time, and `step`, by column, by the tensor's number.

        Args:
            names: The statistics.
            from_step: The first step.

        Raises:
            UsageError: There is no such statistic.
            DumpError: The history is damaged.
        """
        for name in names:
            _require_column(name)
        which = "WHERE step >= ? ORDER BY tensor, step"
        found = self._columns("stats", ("step", "tensor", *names), which, from_step)
        numbers, starts = np.unique(found["tensor"], return_index=True)
        bounds = [*starts.tolist(), len(found["tensor"])]
        return {
            int(number): {name: found[name][start:end] for name in ("step", *names)}
            for number, (start, end) in zip(numbers, pairwise(bounds), strict=True)
            if number == number  # noqa: PLR0124 - NaN stands for a number that is missing
        }

    def histograms_of(self, number: int) -> dict[int, ValueHistogram]:
        """Returns the histograms of a tensor by step, in order; empty where none were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        with reading(self._path):
            which = "WHERE tensor = ? ORDER BY step"
            blobs = self._rows("histograms", ("counts",), bytes, which, number)
            steps = self._rows("histograms", ("step",), float, which, number)
            return {
                int(step or 0): ValueHistogram.from_bytes(blob or b"")
                for (step,), (blob,) in zip(steps, blobs, strict=True)
            }

    def histogram_steps(self) -> np.ndarray:
        """Returns the steps of which histograms were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        return self._columns("histograms", ("step", "tensor"), "GROUP BY step ORDER BY step")["step"]

    def histograms_at(self, step: int) -> dict[int, ValueHistogram]:
        """Returns the histogram of each tensor at a step, by its number; empty where none were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        with reading(self._path):
            which = "WHERE step = ? ORDER BY tensor"
            blobs = self._rows("histograms", ("counts",), bytes, which, step)
            numbers = self._rows("histograms", ("tensor",), float, which, step)
            return {
                int(number or 0): ValueHistogram.from_bytes(blob or b"")
                for (number,), (blob,) in zip(numbers, blobs, strict=True)
            }

    def noise(self, number: int | None) -> dict[str, np.ndarray]:
        """Returns the noise of gradients over time: by column an array, and `step`; NaN where a value is missing.

        Args:
            number: The number of a parameter's gradient; None for all trained parameters together.

        Raises:
            DumpError: The history is damaged.
        """
        which = ALL_PARAMETERS if number is None else number
        return self._columns("noise", ("step", *NOISE), "WHERE tensor = ? ORDER BY step", which)

    def noise_at(self, step: int) -> dict[int | None, dict[str, float | int]]:
        """Returns the noise of gradients at a step, by the tensor's number, of all together by None.

        Raises:
            DumpError: The history is damaged.
        """
        with reading(self._path):
            rows = self._rows("noise", ("tensor", *NOISE), float, "WHERE step = ? ORDER BY tensor", step)
        return {
            None if number == ALL_PARAMETERS else int(number): {
                name: value for name, value in zip(NOISE, values, strict=True) if value is not None
            }
            for number, *values in rows
            if number is not None
        }

    def alarms(self) -> tuple[Alarm, ...]:
        """Returns what was wrong, in the order of the steps.

        Raises:
            DumpError: The history is damaged.
        """
        with reading(self._path):
            texts = self._rows("alarms", ("rule", "why", "folder"), str, "ORDER BY step, rowid")
            numbers = self._rows("alarms", ("step", "tensor", "value", '"limit"'), float, "ORDER BY step, rowid")
        keys = {number: tensor.key for number, tensor in self.tensors.items()}
        return tuple(
            Alarm(
                step=int(step or 0), rule=rule or "", why=why or "", folder=folder,
                key=None if tensor is None else keys.get(int(tensor)), value=value, limit=limit,
            )
            for (rule, why, folder), (step, tensor, value, limit) in zip(texts, numbers, strict=True)
        )  # fmt: skip

    def _columns(self, table: str, names: Sequence[str], which: str, *values: int) -> dict[str, np.ndarray]:
        with reading(self._path):
            # Part by part, because objects take five times the memory of an array's numbers.
            parts = [np.array(rows, np.float64) for rows in self._parts(table, names, float, which, *values)]
        columns = dict(zip(names, np.concatenate([np.empty((0, len(names))), *parts]).T, strict=True))
        if np.isnan(columns["step"]).any():
            raise DumpError(f"a row of its table {table} has no step")
        return {**columns, "step": columns["step"].astype(np.int64)}

    def _rows(self, table: str, columns: Sequence[str], kind: type, which: str = "", *values: int) -> list[Any]:
        """Returns rows of a table whose columns are all texts, all numbers, or all blobs; the first two may be NULL."""
        return [*chain.from_iterable(self._parts(table, columns, kind, which, *values))]

    def _parts(self, table: str, columns: Sequence[str], kind: type, which: str, *values: int) -> Generator[list[Any]]:
        """Yields the rows that `_rows` returns, some at once."""
        self._work = 0
        # SQLite stores any value in any column. The check is SQLite's, as Python takes a second for a million values.
        wrong = " OR ".join(is_strange(column, kind) for column in columns)
        listed = ", ".join(columns)
        query = f"SELECT {wrong}, {listed} FROM {table} {which}"  # noqa: S608 - our own names
        cursor = self._connection.execute(query, values)
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            if any(row[0] for row in rows):
                raise DumpError(f"a value in its table {table} is of a wrong type, sign or size")
            yield [row[1:] for row in rows]

    def _tensor_rows(self) -> Generator[tuple[int, TensorRow]]:
        texts = self._rows("tensors", ("family", "name", "shape", "dtype", "layer", "source"), str, "ORDER BY id")
        numbers = self._rows("tensors", ("id",), float, "ORDER BY id")
        for (number,), (family, name, shape, dtype, layer, source) in zip(numbers, texts, strict=True):
            if not family or name is None or number is None:
                raise DumpError("a tensor in its table tensors has no name")
            yield (
                number,
                TensorRow(family=family, name=name, shape=stored_shape(shape), dtype=dtype, layer=layer, source=source),
            )

    def _worked(self) -> bool:
        """Returns whether a query has to end; SQLite calls it."""
        self._work += WORK_UNIT
        return self._work > self._most_work


def _require_column(name: str) -> None:
    if name not in STATS:
        raise UsageError(f"a history has no column {name!r}", hint=nearest_hint(name, STATS))
