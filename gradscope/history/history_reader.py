"""Reads a history: what a run recorded of its steps and tensors, and what was wrong."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from gradscope.dump.storage.storage_errors import machine_error
from gradscope.errors import DumpError, MissingKeyError, UsageError
from gradscope.history.database.checked_tables import CheckedTables
from gradscope.history.database.schema import ALL_PARAMETERS, LOSSES, LOSSES_SINCE, NOISE, STATS, STEPS
from gradscope.history.database.tensor_series import TensorSeries
from gradscope.history.database.untrusted_database import stored_shape
from gradscope.history.folder.run_files import HISTORY, files_of, folder_hint, is_run
from gradscope.history.history_rows import Alarm, TensorRow
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import printable
from gradscope.naming.selecting.nearest_names import nearest_hint

#: The columns of a tensor that many have in common.
_SHARED: Final = ("family", "shape", "dtype", "layer", "source")


class History:
    """A `History` is that of a run, opened for reading. It is a context manager.

    Args:
        folder: The folder of the run.
        as_written: Whether the run is the one that is being written, also where another one stays until a step of it is
            taken.

    Attributes:
        folder: The folder of the run.
        files: The folder that has its history and its states.
        facts: What the run states about itself.
        tensors: The tensors that it observes, by number, in the order of the step.

    Raises:
        DumpError: There is none, or it is damaged or not one that gradscope writes.
        MachineError: It cannot be read.
    """

    def __init__(self, folder: Path, *, as_written: bool = False) -> None:
        if not is_run(folder):
            _require_entered(folder)
            shown = printable(str(folder))
            hint = folder_hint(folder) or "'gradscope train' makes one"
            raise DumpError(f"{shown} is no run: it has no history", hint=hint)
        self.folder = folder
        self.files = folder if as_written else files_of(folder)
        self._database = CheckedTables(self.files / HISTORY)
        with self._database.opening():
            self.facts = {str(key): str(value) for key, value in self._database.rows("run", ("key", "value"), str)}
            self.tensors = dict(self._tensor_rows())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def require_sound(self) -> None:
        """Refuses a history that is damaged anywhere: one that is going to be continued, before steps are lost in it.

        Raises:
            DumpError: It is.
        """
        keys = ("step", "tensor")
        self._database.require_sound("steps", tuple(STEPS), float)
        self._database.require_sound("stats", (*keys, *STATS), float)
        self._database.require_sound("noise", (*keys, *NOISE), float)
        self._database.require_sound("histograms", keys, float)
        self._database.require_sound("histograms", ("counts",), bytes)
        self.losses()
        self.alarms()

    def steps(self) -> dict[str, np.ndarray]:
        """Returns what was recorded of each step: by column an array, NaN where a value is missing.

        Raises:
            DumpError: The history is damaged.
        """
        return self._database.columns("steps", tuple(STEPS), "ORDER BY step")

    def step_numbers(self) -> np.ndarray:
        """Returns the recorded steps.

        Raises:
            DumpError: The history is damaged.
        """
        return self._database.columns("steps", ("step",), "ORDER BY step")["step"]

    def step(self, step: int) -> dict[str, float]:
        """Returns what was recorded of a step; what is missing is left out, and all is where it was not recorded.

        Raises:
            DumpError: The history is damaged.
        """
        found = self._database.columns("steps", tuple(STEPS), "WHERE step = ?", step)
        known = {name: float(value) for name, values in found.items() for value in values}
        return {name: value for name, value in known.items() if not math.isnan(value)}

    def losses(self) -> dict[str, np.ndarray]:
        """Returns `step` and `loss` of every step whose loss is known, recorded or not; NaN where it was no number.

        Raises:
            DumpError: The history is damaged.
        """
        # An older version kept the losses of the recorded steps only.
        table = "losses" if self._database.version >= LOSSES_SINCE else "steps"
        return self._database.columns(table, tuple(LOSSES), "ORDER BY step")

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
        return self._database.columns("stats", ("step", *STATS), "WHERE tensor = ? ORDER BY step", number)

    def series(self, number: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the steps and the values of one statistic of a tensor.

        Raises:
            UsageError: There is no such statistic.
            DumpError: The history is damaged.
        """
        _require_column(name)
        found = self._database.columns("stats", ("step", name), "WHERE tensor = ? ORDER BY step", number)
        return found["step"], found[name]

    def stats_at(self, step: int) -> dict[int, dict[str, float | int]]:
        """Returns the statistics of each tensor at a step, by its number; a missing value has no key.

        Raises:
            DumpError: The history is damaged.
        """
        with self._database.reading():
            rows = self._database.each_row("stats", ("tensor", *STATS), float, "WHERE step = ? ORDER BY tensor", step)
            return {
                int(number): {name: value for name, value in zip(STATS, values, strict=True) if value is not None}
                for number, *values in rows
                if number is not None
            }

    def columns(self, names: Sequence[str], from_step: int = 0) -> TensorSeries:
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
        return TensorSeries(self._database.columns("stats", ("step", "tensor", *names), which, from_step))

    def histograms_of(self, number: int) -> dict[int, ValueHistogram]:
        """Returns the histograms of a tensor by step, in order; empty where none were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        with self._database.reading():
            which = "WHERE tensor = ? ORDER BY step"
            blobs = self._database.rows("histograms", ("counts",), bytes, which, number)
            steps = self._database.rows("histograms", ("step",), float, which, number)
            return {
                int(step or 0): ValueHistogram.from_bytes(blob or b"")
                for (step,), (blob,) in zip(steps, blobs, strict=True)
            }

    def histogram_steps(self) -> np.ndarray:
        """Returns the steps of which histograms were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        return self._database.columns("histograms", ("step", "tensor"), "GROUP BY step ORDER BY step")["step"]

    def histograms_at(self, step: int) -> dict[int, ValueHistogram]:
        """Returns the histogram of each tensor at a step, by its number; empty where none were recorded.

        Raises:
            DumpError: The history is damaged.
        """
        with self._database.reading():
            which = "WHERE step = ? ORDER BY tensor"
            blobs = self._database.rows("histograms", ("counts",), bytes, which, step)
            numbers = self._database.rows("histograms", ("tensor",), float, which, step)
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
        return self._database.columns("noise", ("step", *NOISE), "WHERE tensor = ? ORDER BY step", which)

    def noise_at(self, step: int) -> dict[int | None, dict[str, float | int]]:
        """Returns the noise of gradients at a step, by the tensor's number, of all together by None.

        Raises:
            DumpError: The history is damaged.
        """
        with self._database.reading():
            rows = self._database.rows("noise", ("tensor", *NOISE), float, "WHERE step = ? ORDER BY tensor", step)
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
        with self._database.reading():
            order = "ORDER BY step, rowid"
            texts = self._database.rows("alarms", ("rule", "why", "folder"), str, order)
            numbers = self._database.rows("alarms", ("step", "tensor", "value", '"limit"'), float, order)
        keys = {number: tensor.key for number, tensor in self.tensors.items()}
        return tuple(
            Alarm(
                step=int(step or 0), rule=rule or "", why=why or "", folder=folder,
                key=None if tensor is None else keys.get(int(tensor)), value=value, limit=limit,
            )
            for (rule, why, folder), (step, tensor, value, limit) in zip(texts, numbers, strict=True)
        )  # fmt: skip

    def _tensor_rows(self) -> Generator[tuple[int, TensorRow]]:
        texts = self._database.rows("tensors", ("family", "name", *_SHARED[1:]), str, "ORDER BY id")
        numbers = self._database.rows("tensors", ("id",), float, "ORDER BY id")
        shared: dict[Any, Any] = {}  # what many tensors have in common is one object
        for (number,), (family, name, shape, *others) in zip(numbers, texts, strict=True):
            if not family or name is None or number is None:
                raise DumpError("a tensor in its table tensors has no name")
            common = zip(_SHARED, (family, stored_shape(shape), *others), strict=True)
            yield number, TensorRow(name=name, **{column: shared.setdefault(each, each) for column, each in common})


def _require_column(name: str) -> None:
    if name not in STATS:
        raise UsageError(f"a history has no column {name!r}", hint=nearest_hint(name, STATS))


def _require_entered(folder: Path) -> None:
    """Raises where nobody can tell whether a folder is that of a run.

    Raises:
        MachineError: It, or a folder on the way to it, may not be entered.
    """
    try:
        (folder / HISTORY).lstat()
    except PermissionError as error:
        raise machine_error("open", folder, error) from error
    except (OSError, ValueError):  # ValueError: a NUL character
        pass
