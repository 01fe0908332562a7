"""The long table has every number of a history as a row: step, family, name, statistic, value."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from gradscope.history.exporting.every_step import every_step
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming import spreadsheet_text

HEADINGS: Final = ("step", "family", "name", "statistic", "value")

#: The family of the numbers of a step that belong to no tensor.
_STEP: Final = "step"
_INTEGERS: Final = frozenset({"examples", "skipped"})

LongRow = tuple[int, str, str, str, float | int]


def long_rows(history: History, selects: Callable[[TensorRow], bool]) -> Iterator[LongRow]:
    """Yields the numbers of each step, and the statistics of its tensors; what is missing has no row.

    Args:
        history: The history.
        selects: Which tensors.

    Raises:
        DumpError: The history is damaged.
    """
    chosen = {number: tensor for number, tensor in history.tensors.items() if selects(tensor)}
    for step, numbers, is_recorded in every_step(history):
        for name, value in numbers.items():
            yield step, _STEP, "", name, int(value) if name in _INTEGERS else value
        if not is_recorded:
            continue
        noise = history.noise_at(step)
        yield from ((step, _STEP, "", name, value) for name, value in noise.pop(None, {}).items())
        for number, stats in (*history.stats_at(step).items(), *noise.items()):
            tensor = None if number is None else chosen.get(number)
            if tensor is not None:
                yield from ((step, tensor.family, tensor.name, name, value) for name, value in stats.items())


def write_csv(history: History, selects: Callable[[TensorRow], bool], file: TextIO) -> None:
    """Writes the long table as CSV, with its headings; numbers have all of their digits.

    Args:
        history: The history.
        selects: Which tensors.
        file: Where the text goes.

    Raises:
        DumpError: The history is damaged.
        OSError: The text cannot be written.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADINGS)
    for step, family, name, statistic, value in long_rows(history, selects):
        writer.writerow((step, spreadsheet_text(family), spreadsheet_text(name), statistic, value))
