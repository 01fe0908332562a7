"""Event files of TensorBoard have the scalars, histograms, texts and hyperparameters of a run.

An event has everything of one step. Tags are the keys of tensors with the statistic, `param_grad/head/kernel/l2`, and
the columns of steps, `loss`. Counts of zeros, NaN and infinities are written where they are not zero.

tensorboardX has the format and writes records. Its writers with a queue are not used: they lose errors of the disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.errors import UsageError
from gradscope.frameworks.extras import install_hint
from gradscope.history.exporting.every_step import every_step
from gradscope.history.folder.run_files import event_files_in
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm, StepRecord, TensorRow
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import printable

try:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2, summary_pb2
    from tensorboardX.summary import hparams, text
except ImportError as missing:
    raise UsageError("event files need the package tensorboardX", hint=install_hint("tensorboardX")) from missing

#: The messages are classes that protobuf makes when it is imported, which a type checker cannot see.
_EVENTS: Final[Any] = event_pb2
_SUMMARIES: Final[Any] = summary_pb2

#: How the names of facts begin that are options of the run.
_OPTION: Final = "option "

#: The scalars that TensorBoard compares runs by, beside their hyperparameters.
_METRICS: Final = ("loss",)

_COUNTS: Final = frozenset({"zeros", "nan", "inf"})
_NO_SCALARS: Final = frozenset({"step", "time"})
#: The end of the smallest bin: TensorBoard's buckets have a width, and that of zeros gets this one.
_LEAST: Final = 2.0**-127


class EventFile:
    """An `EventFile` is an event file that is being written. It is a context manager.

    Args:
        folder: The folder that it is made in, which exists.
        from_step: What earlier files in the folder have of this step and of later ones is void; None for nothing.

    Raises:
        MachineError: It cannot be written.
    """

    def __init__(self, folder: Path, *, from_step: int | None = None) -> None:
        self._folder = folder
        # tensorboardX names files by the second, overwrites what has the name, and readers take files by their names.
        order = f".{len(event_files_in(folder)):06}"
        with self._errors():
            self._writer = EventsWriter(str(folder.absolute() / "events"), filename_suffix=order)
        if from_step is not None:
            started = _EVENTS.SessionLog(status=_EVENTS.SessionLog.START)
            self._write(_EVENTS.Event(step=from_step, wall_time=time.time(), session_log=started))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._errors():
            self._writer.close()

    def describe(self, facts: Mapping[str, str]) -> None:
        """Writes what a run states about itself as a text, and its options as hyperparameters.

        Args:
            facts: The facts of its history.

        Raises:
            MachineError: The disk is full or fails.
        """
        lines = [f"| {_in_table(name)} | {_in_table(value)} |" for name, value in facts.items()]
        self._summary(text("run", "\n".join(["| fact | value |", "| --- | --- |", *lines])), 0)
        options = {name.removeprefix(_OPTION): value for name, value in facts.items() if name.startswith(_OPTION)}
        for part in hparams(
            {name: _hyperparameter(value) for name, value in options.items()}, dict.fromkeys(_METRICS, 0.0)
        ):
            self._summary(part, 0)

    def step(self, record: StepRecord) -> None:
        """Writes a step.

        Args:
            record: What was recorded of it; a missing number is None or NaN.

        Raises:
            MachineError: The disk is full or fails.
        """
        numbers = record.numbers
        by_key = [*record.stats.items(), *((key, each) for key, each in record.noise.items() if key is not None)]
        values = [*_scalars({**numbers, **record.noise.get(None, {})})]
        values += [each for key, found in by_key for each in _statistics(key, found)]
        drawn = record.histograms.items()
        values += [_histogram(key, each, record.stats.get(key, {})) for key, each in drawn if each.bins]
        self._summary(_SUMMARIES.Summary(value=values), int(numbers["step"] or 0), numbers.get("time"))

    def alarm(self, alarm: Alarm) -> None:
        """Writes an alarm as a text at its step.

        Raises:
            MachineError: The disk is full or fails.
        """
        words = [f"{alarm.rule}:", *filter(None, [alarm.key]), alarm.why]
        self._summary(text("alarms", _in_table(" ".join(words))), alarm.step)

    def flush(self) -> None:
        """Hands everything to the operating system.

        Raises:
            MachineError: The disk is full or fails.
        """
        with self._errors():
            self._writer.flush()

    def _summary(self, summary: Any, step: int, wall_time: float | None = None) -> None:
        known = wall_time is not None and not math.isnan(wall_time)
        self._write(_EVENTS.Event(step=step, wall_time=wall_time if known else time.time(), summary=summary))

    def _write(self, event: Any) -> None:
        with self._errors():
            self._writer.write_event(event)

    def _errors(self) -> Any:
        return machine_errors("write an event file in", self._folder)


def export_events(history: History, selects: Callable[[TensorRow], bool], folder: Path) -> int:
    """Writes an event file of a whole history.

    Args:
        history: The history.
        selects: Which tensors.
        folder: The folder, which exists.

    Returns:
        The number of recorded steps.

    Raises:
        DumpError: The history is damaged.
        MachineError: The disk is full or fails.
    """
    recorded = 0
    chosen = {number: tensor.key for number, tensor in history.tensors.items() if selects(tensor)}
    drawn = {*history.histogram_steps().tolist()}
    with EventFile(folder) as file:
        file.describe(history.facts)
        for step, known, is_recorded in every_step(history):
            numbers = {"step": step, **known}
            if not is_recorded:
                file.step(StepRecord(numbers=numbers))
                continue
            recorded += 1
            stats = {chosen[number]: each for number, each in history.stats_at(step).items() if number in chosen}
            noise = {
                None if number is None else chosen[number]: each
                for number, each in history.noise_at(step).items()
                if number is None or number in chosen
            }
            found = history.histograms_at(step) if step in drawn else {}
            histograms = {chosen[number]: each for number, each in found.items() if number in chosen}
            file.step(StepRecord(numbers=numbers, stats=stats, histograms=histograms, noise=noise))
        for alarm in history.alarms():
            file.alarm(alarm)
    return recorded


def _scalars(numbers: Mapping[str, float | int | None]) -> Iterator[Any]:
    for name, value in numbers.items():
        if name not in _NO_SCALARS and value is not None and not math.isnan(value):
            yield _SUMMARIES.Summary.Value(tag=name, simple_value=value)


def _statistics(key: str, stats: Mapping[str, float | int | None]) -> Iterator[Any]:
    for name, value in stats.items():
        if value is not None and (value or name not in _COUNTS):
            yield _SUMMARIES.Summary.Value(tag=f"{key}/{name}", simple_value=value)


def _histogram(key: str, histogram: ValueHistogram, stats: Mapping[str, float | int | None]) -> Any:
    """Returns a histogram as TensorBoard has it: buckets without gaps, each up to a limit."""
    limits: list[float] = []
    counts: list[float] = []
    for low, high, count in zip(histogram.lower.tolist(), histogram.upper.tolist(), histogram.counts, strict=True):
        if limits and limits[-1] > low:  # after that of zeros, which ends where this one does
            counts[-1] += count
            continue
        if limits and limits[-1] < low:
            limits.append(low)
            counts.append(0.0)
        limits.append(high if high != low else _LEAST)
        counts.append(float(count))
    total, l2 = histogram.total, stats.get("l2") or 0.0
    return _SUMMARIES.Summary.Value(
        tag=key,
        histo=_SUMMARIES.HistogramProto(
            min=float(histogram.lower[0]), max=float(histogram.upper[-1]), num=total,
            sum=(stats.get("mean") or 0.0) * total, sum_squares=l2 * l2,
            bucket_limit=limits, bucket=counts,
        ),
    )  # fmt: skip


def _in_table(words: str) -> str:
    """Returns words as code in a table of Markdown, which TensorBoard shows texts as."""
    return "`" + printable(words).replace("`", "'").replace("|", "\\|") + "`"


def _hyperparameter(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value
