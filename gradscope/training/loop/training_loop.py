"""The loop of a training run: one step after the other, what is recorded of them, and the checkpoints."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax.numpy as jnp

from gradscope.capturing.execution.arguments import Arguments
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.errors import GradscopeError
from gradscope.history.history_rows import Alarm, StepRecord
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.run_folder import RunFolder, state_path
from gradscope.tracing.loading.model import Model
from gradscope.tracing.user_frames import user_code
from gradscope.training.loop.alarm_files import save_nonfinite
from gradscope.training.loop.recording import step_record, tensor_rows
from gradscope.training.loop.resuming import Start, option_facts, owned, start
from gradscope.training.loop.state_files import save_state
from gradscope.training.loop.step_programs import StepPrograms, Taken
from gradscope.training.step import TrainStep

if TYPE_CHECKING:
    from gradscope.history.exporting.event_files import EventFile

#: Steps that may be on their way to the device while the loop goes on.
_AHEAD: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """When checkpoints are saved, beside the one after the last step.

    Attributes:
        steps: After every so many steps; None for never.
        seconds: After every so many seconds; None for never.
        keep: How many of the last ones are kept.
    """

    steps: int | None = None
    seconds: float | None = None
    keep: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What a run does.

    Attributes:
        model: The model.
        arguments: The arguments of its loss.
        batch: Returns the batch of a step, by number.
        step: The step.
        steps: How many steps the run has in the end.
        every: Steps that this number divides are recorded, and the last.
        histograms_every: Of steps that this number divides, and the last, the histograms are recorded, too; None for
            none.
        tensorboard: Whether event files of TensorBoard are written, too.
        saving: When checkpoints are saved.
        check_numerics: Whether the run stops at a loss or a gradient that is not finite.
        options: The options that decide the run's numbers, for its history.
        facts: What manifests and the history state about the run.
        stop: Returns whether the run is to stop after the present step.
        progress: Called after each step with its number and its numbers.
    """

    model: Model
    arguments: Arguments
    batch: Callable[[int], Any]
    step: TrainStep
    steps: int
    every: int
    histograms_every: int | None = None
    tensorboard: bool = False
    saving: Saving = field(default_factory=Saving)
    check_numerics: bool = True
    options: Mapping[str, str]
    facts: Mapping[str, Json]
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int, Mapping[str, Any]], None] = lambda _number, _numbers: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        resumed_from: The number of steps that had been taken before; None for a new run.
        steps: The number of steps that it has taken in all.
        state: Its last checkpoint.
        alarm: What stopped it; None where nothing did.
        dump: The manifest of the dump of the step that raised the alarm; None without an alarm.
    """

    resumed_from: int | None
    steps: int
    state: Path
    alarm: Alarm | None = None
    dump: Manifest | None = None


class _OnItsWay(NamedTuple):
    """A step that the device may not have finished."""

    number: int
    batch: Any
    sound: Any
    numbers: Mapping[str, Any]


def train(request: TrainRequest, folder: RunFolder, *, resume: bool) -> Outcome:
    """Trains a model and records the run.

    Args:
        request: What the run does.
        folder: Its folder, locked.
        resume: Whether the run in it is continued.

    Returns:
        How it ended: all steps are taken, or it was asked to stop, or a number was not finite.

    Raises:
        UsageError: The pipeline has fewer batches, a pattern selects nothing, or the run has more steps already.
        DumpError: A batch or the checkpoint cannot be used.
        ModelError: The model failed.
        MachineError: Memory or disk ran out; the checkpoint before is whole.
    """
    programs = StepPrograms(request.step, check=request.check_numerics)
    first = owned(request.step.init(request.arguments.make()[0]))  # nothing else keeps the variables in memory
    beginning = Start(state=first, previous=None, number=0)
    if resume:
        beginning = start(folder.path, first, programs.no_gradients(first), steps=request.steps)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in request.facts.items()}
    facts = {**texts, **option_facts(request.options)}
    with (
        _event_file(request, folder, beginning.number if resume else None, facts) as events,
        HistoryWriter(folder.path, from_step=beginning.number, facts=facts) as history,
    ):
        history.describe(facts)
        outcome = _Loop(request, folder, history, programs, beginning, events=events).run()
    return outcome if resume else replace(outcome, resumed_from=None)


def _event_file(
    request: TrainRequest, folder: RunFolder, from_step: int | None, facts: Mapping[str, str]
) -> AbstractContextManager[EventFile | None]:
    """Returns the event file of the run, with what the run states about itself; None where none is asked for."""
    if not request.tensorboard:
        return nullcontext()
    from gradscope.history.exporting.event_files import EventFile  # noqa: PLC0415 - it needs tensorboardX

    made = EventFile(folder.path, from_step=from_step)
    made.describe(facts)
    return made


class _Loop:
    """The loop of one run, from a start to its end."""

    def __init__(
        self, request: TrainRequest, folder: RunFolder, history: HistoryWriter, programs: StepPrograms, begin: Start,
        *, events: EventFile | None,
    ) -> None:  # fmt: skip
        self._request = request
        self._folder = folder
        self._history = history
        self._programs = programs
        self._events = events
        self._begin = begin.number
        self._state = begin.state
        self._previous = begin.previous
        self._sound: Any = jnp.bool_(True)
        self._on_their_way: deque[_OnItsWay] = deque()
        self._saved_at = time.monotonic()
        self._described = False

    def run(self) -> Outcome:
        """Runs the steps."""
        number, saved = self._begin, self._begin or None
        unsound: _OnItsWay | None = None
        while number < self._request.steps and not self._request.stop():
            self._take(number)
            number += 1
            unsound = self._settled(_AHEAD)
            if unsound is None and self._is_due(number):
                unsound = self._settled(0)
                if unsound is None:
                    saved = self._save(number)
            if unsound is not None:
                break
        unsound = unsound or self._settled(0)
        if unsound is not None:
            return self._alarmed(unsound)
        if saved != number:
            self._save(number)
        return Outcome(resumed_from=self._begin, steps=number, state=state_path(self._folder.path, number))

    def _take(self, number: int) -> None:
        """Starts a step, observed where it is due."""
        request = self._request
        batch = self._batch(number)
        with user_code(f"running {request.model.name}"):
            if self._divides(request.every, number) or self._divides(request.histograms_every, number):
                taken = self._observed(number, batch)
            else:
                taken = self._programs.plain(self._state, self._sound, batch)
        self._state, self._sound = taken.state, taken.sound
        self._on_their_way.append(_OnItsWay(number, batch, taken.sound, taken.numbers))

    def _divides(self, every: int | None, number: int) -> bool:
        """Returns whether a step is one of those that a number divides, or the last."""
        return every is not None and (number % every == 0 or number == self._request.steps - 1)

    def _batch(self, number: int) -> Any:
        """Returns the batch of a step; where it cannot be had, the state before the step is saved first."""
        try:
            return self._request.batch(number)
        except GradscopeError:
            if number > self._begin and self._settled(0) is None:
                self._save(number)
            raise

    def _observed(self, number: int, batch: Any) -> Taken:
        follows = self._previous is not None
        previous = self._previous if follows else self._programs.no_gradients(self._state)
        histograms = self._divides(self._request.histograms_every, number)
        taken = self._programs.observed(self._state, self._sound, previous, batch, histograms=histograms)
        self._previous = taken.gradients
        if not self._described:
            self._history.describe({}, tensor_rows(self._programs, taken.state))
            self._described = True
        size = self._request.arguments.batch_size
        examples = None if size is None else (number + 1) * size
        keys, recorded = self._programs.keys, taken.recorded
        assert recorded is not None
        made = partial(step_record, number, keys, recorded, examples=examples, follows=follows)
        self._history.write(partial(self._with_event, made))
        return taken

    def _with_event(self, made: Callable[[], StepRecord]) -> StepRecord:
        """Returns the record of a step, which is in the event file then, too; called in the writer's thread."""
        record = made()
        if self._events is not None:
            self._events.step(record.numbers, record.stats.items(), record.histograms)
            self._events.flush()
        return record

    def _settled(self, ahead: int) -> _OnItsWay | None:
        """Waits until no more than so many steps are on their way; returns the first that was not sound."""
        while len(self._on_their_way) > ahead:
            step = self._on_their_way.popleft()
            with user_code(f"running {self._request.model.name}"):
                sound = bool(step.sound)
            self._request.progress(step.number, step.numbers)
            if not sound:
                return step
        return None

    def _is_due(self, number: int) -> bool:
        saving = self._request.saving
        if saving.steps is not None and number % saving.steps == 0:
            return True
        return saving.seconds is not None and time.monotonic() - self._saved_at >= saving.seconds

    def _save(self, number: int) -> int:
        """Saves the state after so many steps, behind everything that was recorded of them."""
        self._history.flush()
        facts = {**self._request.facts, "steps": number}
        save_state(state_path(self._folder.path, number), self._state, self._previous, facts)
        self._folder.keep_states(self._request.saving.keep)
        self._saved_at = time.monotonic()
        return number

    def _alarmed(self, unsound: _OnItsWay) -> Outcome:
        """Ends the run before a step whose loss or gradients are not finite; the state is still the one before it."""
        request, number = self._request, unsound.number
        self._on_their_way.clear()
        self._history.forget(number + 1)
        self._previous = None  # those of this step
        self._save(number)
        alarm, dump = save_nonfinite(
            request.model, self._state, unsound.batch, step=number, run=self._folder.path, facts=request.facts
        )
        self._history.alarm(alarm)
        if self._events is not None:
            self._events.alarm(alarm)
        return Outcome(
            resumed_from=self._begin, steps=number, state=state_path(self._folder.path, number), alarm=alarm, dump=dump
        )
