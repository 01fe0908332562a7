"""The long table has every number of a history as a row: step, family, name, statistic, value."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import chain, islice
from typing import Final

from gradscope.history.exporting.every_step import every_step
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming import spreadsheet_text

HEADINGS: Final = ("step", "family", "name", "statistic", "value")

#: The family of the numbers of a step that belong to no tensor.
_STEP: Final = "step"
_INTEGERS: Final = frozenset({"examples", "skipped"})

#: Rows that are text at the same time.
_ROWS_AT_ONCE: Final = 4_096

LongRow = tuple[int, str, str, str, float | int]


def long_rows(history: History, selects: Callable[[TensorRow], bool], *, with_steps: bool) -> Iterator[LongRow]:
    """Yields the numbers of each step, and the statistics of its tensors; what is missing has no row. Names are safe.

    Args:
        history: The history.
        selects: Which tensors.
        with_steps: Whether the numbers that belong to no tensor have rows, such as the loss.

    Raises:
        DumpError: The history is damaged.
    """
    chosen = {
        number: (spreadsheet_text(tensor.family), spreadsheet_text(tensor.name))
        for number, tensor in history.tensors.items()
        if selects(tensor)
    }
    for step, numbers, is_recorded in every_step(history):
        for name, value in numbers.items() if with_steps else ():
            yield step, _STEP, "", name, int(value) if name in _INTEGERS else value
        if not is_recorded:
            continue
        noise = history.noise_at(step)
        of_batch = noise.pop(None, {})
        yield from ((step, _STEP, "", name, value) for name, value in of_batch.items() if with_steps)
        for number, stats in (*history.stats_at(step).items(), *noise.items()):
            if number in chosen:
                yield from ((step, *chosen[number], name, value) for name, value in stats.items())


def csv_parts(history: History, selects: Callable[[TensorRow], bool], *, with_steps: bool = True) -> Iterator[str]:
    """Yields the text of the long table as CSV, with its headings; numbers have all of their digits.

    Args:
        history: The history.
        selects: Which tensors.
        with_steps: Whether the numbers that belong to no tensor have rows, such as the loss.

    Raises:
        DumpError: The history is damaged.
    """
    rows = chain([HEADINGS], long_rows(history, selects, with_steps=with_steps))
    while some := [*islice(rows, _ROWS_AT_ONCE)]:
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows(some)
        yield text.getvalue()
