"""A step's numbers are written into the history of a run, and into its event file where there is one."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from gradscope.dump.storage.writing.set_aside import SetAside
from gradscope.history.history_rows import StepRecord
from gradscope.training.recording.unwritten_history import RunHistory

if TYPE_CHECKING:
    from gradscope.history.exporting.event_files import EventFile


class StepWriter:
    """A `StepWriter` writes the steps of one run.

    Args:
        history: Its history.
        events: Its event file; None for none.
    """

    def __init__(self, history: RunHistory, events: EventFile | None) -> None:
        self._history = history
        self._events = events
        self._losses: deque[tuple[int, float]] = deque()

    def recorded(self, record: StepRecord) -> None:
        """Writes a step that was recorded soon.

        Raises:
            MachineError: The disk is full or fails, now or when an earlier step was written.
        """
        self._history.write(partial(self._with_event, record))

    def loss(self, step: int, loss: float) -> None:
        """Writes the loss of a step that was not recorded soon."""
        self._history.loss(step, loss)
        if self._events is not None:
            self._losses.append((step, loss))

    def in_place_of(self, old: SetAside) -> None:
        """Removes the run that this one replaces, where there is one, once what was written is on the disk.

        Raises:
            MachineError: The disk is full or fails.
        """
        if old.waits:
            self.flush()
            old.remove()

    def flush(self) -> None:
        """Waits until all of it is written.

        Raises:
            MachineError: The disk is full or fails.
        """
        self._history.flush()
        self._write_losses()

    def _with_event(self, record: StepRecord) -> StepRecord:
        """Returns the record of a step, which is in the event file then, too; called in the history's thread."""
        if self._events is not None:
            self._write_losses(before=int(record.numbers["step"] or 0))
            self._events.step(record)
            self._events.flush()
        return record

    def _write_losses(self, before: int | None = None) -> None:
        while self._losses and self._events is not None and (before is None or self._losses[0][0] < before):
            step, loss = self._losses.popleft()
            self._events.step(StepRecord(numbers={"step": step, "loss": loss}))
