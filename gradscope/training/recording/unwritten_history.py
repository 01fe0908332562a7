"""A process that leaves writing to another one of the same run has a history that is not written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from gradscope.history.history_rows import Alarm, Smoothed, StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.protocols import implements


class UnwrittenHistory:
    """An `UnwrittenHistory` forgets everything; see `HistoryWriter` for what the methods are for."""

    @implements(HistoryWriter)
    def describe(self, facts: Mapping[str, str], tensors: Iterable[TensorRow] = ()) -> None:
        del facts, tensors

    @implements(HistoryWriter)
    def write(self, record: Callable[[], StepRecord | None]) -> None:
        del record

    @implements(HistoryWriter)
    def loss(self, step: int, loss: float) -> None:
        del step, loss

    @implements(HistoryWriter)
    def alarm(self, alarm: Alarm) -> None:
        del alarm

    @implements(HistoryWriter)
    def alarm_folders(self) -> set[str]:
        return set()

    @implements(HistoryWriter)
    def release(self, folder: str) -> None:
        del folder

    @implements(HistoryWriter)
    def smoothed_noise(self) -> dict[str | None, Smoothed]:
        return {}

    @implements(HistoryWriter)
    def flush(self) -> None:
        """Does nothing."""


#: The history of a run, in the process that writes it and in the others.
RunHistory: TypeAlias = HistoryWriter | UnwrittenHistory
