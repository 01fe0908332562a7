"""A probe writes its history into a folder, step by step."""

from __future__ import annotations

import atexit
import logging
import math
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import jax

from gradscope.capturing.run_environment import machine_provenance
from gradscope.errors import UsageError
from gradscope.history.database.schema import AFFINE, FAULTS, TAKEN
from gradscope.history.folder.run_files import is_run
from gradscope.history.folder.run_folder import RunFolder, left_alarms_sentence
from gradscope.history.history_reader import History
from gradscope.history.history_rows import LossFault, StepRecord, fact_texts
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.run_ending import settle
from gradscope.naming import printable
from gradscope.training.probing.collected import Collected
from gradscope.training.probing.probed_step import Layout
from gradscope.training.probing.returned.applied_updates import Misapplied
from gradscope.training.recording.compared_arrays import cosine
from gradscope.training.recording.expected_changes import ChangesMissing
from gradscope.training.recording.loss_faults import loss_faults
from gradscope.training.recording.recorded import Recorded
from gradscope.training.recording.step_rows import (
    affine_params,
    program_facts,
    returned_by_readers,
    tensor_rows,
    unreached_params,
)


class ProbeHistory:
    """A `ProbeHistory` is the open history of a run.

    Args:
        path: The folder.
        start: The number of the first step; rows from it on are removed.
        force: Whether a run in the folder may be replaced.

    Attributes:
        folder: The folder, locked.
        writer: Writes the history.
        sizes: The number of elements of each tensor that was described, by key.
        unreached: Why no gradient reaches a parameter, by name.
        affine: The names of the parameters in which the loss is affine, as in a dual variable.
        returned: The gradients that return to the layers that read a parameter, by its name.
        last: The number of the last step that was written.

    Raises:
        UsageError: The folder holds a run that would be lost, or another process writes to it.
        DumpError: It holds a history that cannot be read, or is damaged where it is continued.
        MachineError: It cannot be written.
    """

    def __init__(self, path: Path, start: int, *, force: bool) -> None:
        self.folder = _opened(path, start, force=force)
        facts = fact_texts(machine_provenance())
        try:
            self.writer = HistoryWriter(self.folder.path, from_step=start, facts=facts, locked=self.folder)
            # Of a run that is continued: it may have come further before.
            self.writer.describe({TAKEN: str(start)})
            if left := self.folder.left_alarms(self.writer.alarm_folders()):
                logging.getLogger("gradscope").warning("gradscope: %s", left_alarms_sentence(left))
        except BaseException:
            self.folder.close()
            raise
        self.sizes: dict[str, int] = {}
        self.unreached: dict[str, str] = {}
        self.affine: set[str] = set()
        self.returned: dict[str, frozenset[str]] = {}
        self.last = start - 1
        self._described: frozenset[str] = frozenset()
        self._previous: dict[str, Any] | None = None
        self._missing = ChangesMissing()
        self._misapplied = Misapplied()
        self._changes: tuple[LossFault, ...] = ()
        self._told: frozenset[LossFault] = frozenset()
        self._faults: tuple[LossFault, ...] = ()

    def close(self, taken: int) -> None:
        """Waits until everything is written, states how many steps the loop has taken, and unlocks the folder.

        Raises:
            MachineError: The disk is full or fails.
        """
        try:
            with self.writer:
                self.writer.flush()
                self._tell()
                self.writer.describe({TAKEN: str(taken)})
        finally:
            settle(self.folder)
            self.folder.close()

    def describe(self, collected: Collected, layout: Layout) -> None:
        """Writes the tensors that a step observes, where there are new ones, and what is wrong with its loss."""
        self._tell()
        if self._described.issuperset(collected.keys):
            return
        tensors = list(tensor_rows(layout.outlines, collected.keys, layout.shapes))
        self.writer.describe(program_facts(layout.outlines), tensors)
        self.sizes.update({each.key: math.prod(each.shape) for each in tensors if each.shape is not None})
        self._described |= frozenset(collected.keys)
        self.unreached.update(unreached_params(layout.outlines))
        self.affine.update(affine_params(layout.outlines))
        self.returned.update(returned_by_readers(layout.outlines))
        if self.affine:
            self.writer.describe(fact_texts({AFFINE: sorted(self.affine)}))
        self._faults, self._changes = loss_faults(each.watching.trace for each in layout.outlines), layout.changes
        self._tell()

    def recorded(self, collected: Collected) -> tuple[Recorded, bool]:
        """Returns what is recorded of a step, and whether it has cosines with the last recorded one."""
        previous, self._previous = self._previous, collected.gradients
        follows = bool(previous) and previous.keys() == collected.gradients.keys()
        cosines = _cosines_of(collected.gradients, previous) if follows else dict.fromkeys(collected.gradients, 0.0)
        recorded = Recorded(
            collected.vectors, cosines, collected.numbers, collected.unchanged, collected.directions
        )  # fmt: skip
        if collected.changes:
            self.writer.write(self._missing.after(collected.changes))
        # What no gradient reaches is moved by the loop alone, as a target network towards the one that is trained.
        applied = {name: each for name, each in collected.applied.items() if name not in self.unreached}
        if applied:
            self.writer.write(self._misapplied.after(applied))
        return recorded, follows

    def write(self, number: int, record: Callable[[], StepRecord]) -> None:
        """Writes a step soon.

        Raises:
            MachineError: The disk is full or fails, now or when an earlier step was written.
        """
        self.writer.write(record)
        if self.folder.set_aside.waits:
            self.writer.flush()
            self.folder.set_aside.remove()
        self.last = number

    def _tell(self) -> None:
        """States what is wrong with the loss, as far as it is known by now."""
        missing = self._missing.faults
        changes = (each for each in self._changes if each.why in missing)
        faults = (*self._faults, *changes, *self._misapplied.faults)
        if self._told != frozenset(faults):
            self.writer.describe(fact_texts({FAULTS: faults}))
        for each in faults:
            if each not in self._told:
                logging.getLogger("gradscope").warning("gradscope: %s", each.notice)
        self._told = frozenset(faults)


class _Open(Protocol):
    def close(self) -> None: ...


def close_at_exit(probe: _Open) -> None:
    """Closes a probe when the program ends, where it is not dropped before: of a loop that fails nothing is lost."""
    _OPEN.add(probe)


def close_open_probes() -> None:
    """Closes all probes that are open.

    Raises:
        MachineError: A history cannot be written.
    """
    with ExitStack() as closing:  # each, also where another one fails
        for probe in list(_OPEN):
            closing.callback(probe.close)


_OPEN: Final = weakref.WeakSet[_Open]()
atexit.register(close_open_probes)


@jax.jit
def _cosines_of(gradients: dict[str, Any], previous: dict[str, Any]) -> dict[str, Any]:
    return {name: cosine(gradient, previous[name]) for name, gradient in gradients.items()}


def _opened(path: Path, start: int, *, force: bool) -> RunFolder:
    folder = RunFolder(path)
    try:
        if is_run(path) and force:
            folder.clear()
        elif is_run(path):
            with History(path) as history:
                recorded = history.step_numbers()
                if start:
                    history.require_sound()
            if len(recorded) and not start:
                raise UsageError(
                    f"{printable(str(path))} holds a run that was recorded up to step {int(recorded[-1]):,}",
                    hint="continue it with start=STEP, replace it with force=True, or name another folder",
                )
    except BaseException:
        folder.close()
        raise
    return folder
