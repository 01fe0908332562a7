"""A probe finds alarms in a thread of its own, and saves their steps in the loop's thread."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from gradscope.errors import ModelError
from gradscope.history.alarms.alarm_rules import DIVERGING, NONFINITE, command_at, suspects_batch
from gradscope.history.alarms.alarm_watch import AlarmWatch
from gradscope.history.folder.run_files import alarm_path
from gradscope.history.history_rows import Alarm, StepRecord
from gradscope.naming import printable
from gradscope.training.probing.alarm_capture import save_step
from gradscope.training.probing.collected import Collected
from gradscope.training.probing.probe_history import ProbeHistory
from gradscope.training.probing.probed_step import ProbedStep
from gradscope.training.probing.step_replay import Arguments, StepReplay
from gradscope.training.recording.alarm_notes import alarm_facts, explained, write_alarms
from gradscope.training.recording.recorded import Recorded
from gradscope.training.recording.step_rows import step_record

#: What an alarm does in a loop that is the user's own.
OnAlarm: TypeAlias = Literal["stop", "save", "note"]
ON_ALARM: Final = ("stop", "save", "note")


class _Found(NamedTuple):
    """A `_Found` has the alarms of a step, and its loss."""

    alarms: list[Alarm]
    loss: float


class ProbeAlarms:
    """`ProbeAlarms` are the alarms of one probe.

    Args:
        history: The history of the run.
        on_alarm: What an alarm does.
        keep: How many folders of alarms are kept.
        keep_every: Steps between two copies of the state.
        every: Steps that this divides are recorded.
    """

    def __init__(self, history: ProbeHistory, *, on_alarm: OnAlarm, keep: int, keep_every: int, every: int) -> None:
        self._folder = history.folder
        self._history = history.writer
        self._on_alarm: OnAlarm = on_alarm
        self._keep = keep
        self._every = every
        self._watch = AlarmWatch(history.sizes, history.unreached, history.affine, history.returned)
        self._losses: deque[tuple[int, Any]] = deque()
        self._found: deque[_Found] = deque()
        self._judged = 0
        self._step: ProbedStep | None = None
        self._replay = None if on_alarm == "note" else StepReplay(keep_every, self._taken)

    def before(self, step: ProbedStep, number: int, arguments: Arguments) -> None:
        """Acts on alarms of the steps before, and keeps what a step is going to be taken with.

        Raises:
            ModelError: An alarm stops the loop.
        """
        self._step = step
        if self._replay is not None:
            if self._replay.crowded and self._replay.is_due(number):
                # A third copy would be one more than there may be: the thread is behind, or steps that are not
                # recorded wait for it.
                self._history.write(self._judging_losses())
                self._history.flush()
            judged = self._judged  # before acting: the thread may find an alarm meanwhile, whose state is still needed
            self.act()
            # The step before may have made what a step that is yet to be judged finds not finite.
            self._replay.judged(judged - 1)
            self._replay.before(number, arguments)
        else:
            self.act()

    def after(self, number: int, arguments: Arguments, out: Any, loss: Any) -> None:
        """Keeps what is known of a step that was taken.

        Args:
            number: The step.
            arguments: Its arguments.
            out: What it returned.
            loss: The loss of a step that was not observed, an array that may not be ready; None for none.
        """
        if self._replay is not None:
            self._replay.after(arguments, out)
        if loss is not None:
            self._losses.append((number, loss))

    def record(self, number: int, keys: Sequence[str], recorded: Recorded, *, follows: bool) -> Any:
        """Returns the function that makes the record of a step, and finds the alarms up to it; for another thread."""
        judge_losses = self._judging_losses(before=number)

        def made() -> StepRecord:
            judge_losses()
            record = step_record(number, keys, recorded, examples=None, follows=follows)
            numbers = {name: value for name, value in record.numbers.items() if value is not None}
            alarms = [self._watch.named(alarm, record.stats) for alarm in self._watch.step(number, numbers)]
            alarms += self._watch.recorded(number, record.stats, record.unchanged, numbers.get("learning_rate"))
            self._note(alarms, float(numbers["loss"]))
            self._judged = number + 1
            return record

        return made

    def finish(self) -> None:
        """Acts on the alarms of the last steps; an alarm no longer stops anything."""
        self._history.write(self._judging_losses())
        self._history.flush()
        self.act(ends=True)

    def _judging_losses(self, before: float = math.inf) -> Any:
        """Returns the function that writes the losses of steps before one, and finds their alarms."""

        def judge() -> None:
            # They are taken out here and not before: an interrupt may come until this thread has the function.
            while self._losses and self._losses[0][0] < before:
                number, loss = self._losses.popleft()
                value = float(loss)  # waits for the device, in the writer's thread
                self._history.loss(number, value)
                self._note(self._watch.step(number, {"loss": value}), value)
                self._judged = number + 1

        return judge

    def _note(self, alarms: list[Alarm], loss: float) -> None:
        if alarms:
            self._found.append(_Found(alarms, loss))

    def act(self, *, ends: bool = False) -> None:
        """Writes the alarms that were found, and saves their steps.

        Args:
            ends: Whether the loop has ended, so that an alarm has nothing to stop.

        Raises:
            ModelError: An alarm stops the loop.
        """
        if self._found:
            self._history.flush()  # the thread reads and writes what names the tensors
        while self._found:
            found = self._found.popleft()
            alarms = found.alarms if self._replay is None else self._saved(found, self._replay)
            for alarm in alarms:
                self._history.alarm(alarm)
            if self._on_alarm == "stop" and not ends:
                raise ModelError(_alarm_line(alarms[0], self._folder.path))
            for alarm in alarms:
                line = printable(f"{self._folder.path}: {_alarm_line(alarm, self._folder.path)}")
                logging.getLogger("gradscope").warning("gradscope: %s", line)

    def _saved(self, found: _Found, replay: StepReplay) -> list[Alarm]:
        """Returns alarms with the folder in which their step is, if it can be had again."""
        step, number = self._step, found.alarms[0].step
        if step is None:  # the user's program takes the steps
            return found.alarms
        arguments, again = replay.arguments_of(number), replay.arguments_of(number)
        if arguments is None or again is None or step.layout is None:
            return found.alarms
        args, kwargs = again
        if number % self._every:
            _, loss = step.taken(*args, **kwargs)
        else:
            loss = step.observed(*args, **kwargs)[1].numbers["loss"]
        if not np.array_equal(np.float32(loss), np.float32(found.loss), equal_nan=True):
            return found.alarms  # the loop changed its state between two steps, by other means than the step
        alarms, loss = found.alarms, found.loss
        if any(each.rule == NONFINITE for each in alarms) and (began := replay.began(number)) < number:
            # Of a step that is not recorded only the loss is known, which shows what a step before it made.
            why = f"its update is not finite, and the loss is {found.loss} at step {number:,}"
            causes = [replace(each, step=began) for each in alarms if each.rule == DIVERGING]
            alarms, loss, number = [*causes, Alarm(step=began, rule=NONFINITE, why=why)], None, began
            arguments = replay.arguments_of(number) or arguments
        if any(alarm.key is None and alarm.rule not in {NONFINITE, DIVERGING} for alarm in alarms):
            args, kwargs = replay.arguments_of(number) or again
            record = _record_of(number, step.observed(*args, **kwargs)[1])
            alarms = [alarm if alarm.key is not None else self._watch.named(alarm, record.stats) for alarm in alarms]
        folder = alarm_path(self._folder.path, number)
        facts: Mapping[str, Any] = {"step": number, **alarm_facts(alarms)}
        dump = save_step(
            step.function, arguments, state=replay.state, names=step.layout.names, folder=folder, facts=facts
        )  # fmt: skip
        alarms = alarms if dump is None else [explained(alarm, dump) for alarm in alarms]
        write_alarms(folder, alarms, loss=dump.loss if loss is None and dump is not None else loss)
        for removed in self._folder.keep_alarms(self._keep, self._history.alarm_folders() | {folder.name}):
            self._history.release(removed)
        return [replace(alarm, folder=folder.name) for alarm in alarms]

    def _taken(self, number: int, arguments: Arguments) -> Any:
        """Takes a step again, by the program that took it."""
        assert self._step is not None
        args, kwargs = arguments
        take = self._step.taken if number % self._every else self._step.observed
        return take(*args, **kwargs)[0]


def _alarm_line(alarm: Alarm, run: Path) -> str:
    where = f"{alarm.key} " if alarm.key else ""
    line = f"step {alarm.step:,}: {alarm.rule}: {where}{alarm.why}"
    if alarm.folder is None:
        return line
    batch = "no observed tensor deviates, so look at the batch" if suspects_batch(alarm) else "look at it"
    return f"{line}; its state and batch are in {alarm.folder}; {batch}: {command_at(alarm, str(run))}"


def _record_of(number: int, collected: Collected) -> StepRecord:
    gradients = dict.fromkeys(collected.gradients, 0.0)
    recorded = Recorded(
        collected.vectors, gradients, collected.numbers, collected.unchanged, collected.directions
    )  # fmt: skip
    return step_record(number, collected.keys, recorded, examples=None, follows=False)
