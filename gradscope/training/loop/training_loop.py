"""The loop of a training run takes one step after the other, records them, and saves checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gradscope.capturing.timings import Timings
from gradscope.errors import GradscopeError
from gradscope.history.folder.run_files import dump_path, state_path, states_in, trace_path
from gradscope.history.folder.run_folder import RunFolder, left_alarms_sentence
from gradscope.history.history_rows import Alarm, StepRecord, fact_texts
from gradscope.history.history_writer import HistoryWriter
from gradscope.tracing.user_frames import user_code
from gradscope.training.loop.alarm_files import save_dump
from gradscope.training.loop.processes import Agreement
from gradscope.training.loop.resuming import Start, leaving_no_empty_run, option_facts, owned, start
from gradscope.training.loop.run_alarms import RunAlarms
from gradscope.training.loop.state_files import save_state
from gradscope.training.loop.step_programs import StepPrograms, Taken
from gradscope.training.loop.step_writer import StepWriter
from gradscope.training.loop.train_request import Outcome, TrainRequest
from gradscope.training.recording.noise_rows import NoiseMeasurement
from gradscope.training.recording.state_ring import copied
from gradscope.training.recording.step_profiles import profiled
from gradscope.training.recording.step_rows import step_record
from gradscope.training.recording.unwritten_history import RunHistory, UnwrittenHistory

if TYPE_CHECKING:
    from gradscope.history.exporting.event_files import EventFile

#: Steps that may be on their way to the device while the loop goes on.
_AHEAD: Final = 2


class _OnItsWay(NamedTuple):
    """An `_OnItsWay` step is one that the device may not have finished."""

    number: int
    batch: Any
    sound: Any
    numbers: Mapping[str, Any]
    record: Callable[[], StepRecord] | None
    wishes: Any  # see `Agreement`


def train(request: TrainRequest, folder: RunFolder, *, resume: bool) -> Outcome:
    """Trains a model and records the run.

    Args:
        request: What the run does.
        folder: Its folder; in the process that writes the run, it is locked.
        resume: Whether the run in it is continued.

    Returns:
        How it ended: all steps are taken, or a signal requested a stop, or a number was not finite.

    Raises:
        UsageError: The pipeline has fewer batches, a pattern selects nothing, or the run has more steps already.
        DumpError: A batch or the checkpoint cannot be used.
        ModelError: The model failed.
        MachineError: Memory or disk ran out; the checkpoint before is whole.
    """
    place, processes = request.placement, request.processes
    programs = StepPrograms(
        request.step, check=request.check_numerics, sharding=None if place is None else place.everywhere
    )
    first = request.step.init(request.arguments.make()[0])
    first = owned(first if place is None else place.replicated(first))  # nothing else keeps the variables in memory
    processes.require_same(f"init of {request.model.name}", first)
    beginning = Start(state=first, previous=None, number=0)
    if resume:
        beginning = start(folder.path, first, programs.no_gradients(first), steps=request.steps, notify=request.notify)
    with programs.finished_on_failure():
        if processes.writes:
            outcome = _written(request, folder, programs, beginning, resume=resume)
        else:
            outcome = _Loop(request, folder, UnwrittenHistory(), programs, beginning, events=None).run()
    processes.wait()  # for what process 0 still writes: one that ends would end the others
    return outcome if resume else replace(outcome, resumed_from=None)


def _written(
    request: TrainRequest, folder: RunFolder, programs: StepPrograms, beginning: Start, *, resume: bool
) -> Outcome:
    facts = {**fact_texts(request.facts), **option_facts(request.options)}
    with (
        leaving_no_empty_run(folder),
        _event_file(request, folder, beginning.number if resume else None, facts) as events,
        HistoryWriter(folder.path, from_step=beginning.number, facts=facts) as history,
    ):
        history.describe(facts)
        if left := folder.left_alarms(history.alarm_folders()):
            request.notify(left_alarms_sentence(left))
        return _Loop(request, folder, history, programs, beginning, events=events).run()


def _event_file(
    request: TrainRequest, folder: RunFolder, from_step: int | None, facts: Mapping[str, str]
) -> AbstractContextManager[EventFile | None]:
    """Returns the event file of the run, with what the run states about itself; None where none is requested."""
    if not request.tensorboard:
        return nullcontext()
    from gradscope.history.exporting.event_files import EventFile  # noqa: PLC0415 - it needs tensorboardX

    made = EventFile(folder.path, from_step=from_step)
    made.describe(facts)
    return made


class _Loop:
    """A `_Loop` takes the steps of one run, from a start to its end."""

    def __init__(
        self, request: TrainRequest, folder: RunFolder, history: RunHistory, programs: StepPrograms, begin: Start,
        *, events: EventFile | None,
    ) -> None:  # fmt: skip
        self._request = request
        self._folder = folder
        self._history = history
        self._programs = programs
        self._writer = StepWriter(history, events)
        self._begin = self._number = begin.number
        self._saved = begin.number or None
        self._keep = request.saving.kept(len(states_in(folder.path)))
        self._state, self._previous = begin.state, begin.previous
        self._sound: Any = self._programs.sound_so_far()
        self._on_their_way: deque[_OnItsWay] = deque()
        self._agreement = Agreement(
            request.processes, stop=request.stop, seconds=request.saving.seconds, every=request.saving.steps
        )  # fmt: skip
        self._described = False
        self._again: dict[int, Any] = {}
        self._alarms = RunAlarms(
            request.model, folder, history, programs, is_observed=self._is_on_a_clock,
            has_histograms=self._has_histograms, on_alarm=request.on_alarm, keep=request.keep_alarms, events=events,
            writes=request.processes.writes, facts=request.facts, notify=request.notify, phase=request.phase,
        )  # fmt: skip
        self._noise = NoiseMeasurement(
            request.step, batch_size=request.arguments.batch_size, group_size=request.microbatch,
            before=history.smoothed_noise(), notify=request.notify,
        )  # fmt: skip
        if begin.watch is not None:
            self._alarms.restore(begin.watch)

    def run(self) -> Outcome:
        """Runs the steps."""
        stopped = False
        while not stopped and self._number < self._request.steps and not self._agreement.signal:
            self._take(self._number)
            self._number += 1
            last = self._number == self._request.steps or self._agreement.signal
            due = self._agreement.is_save_due(self._number)
            wrong = self._settled(0 if last or due else _AHEAD)
            if wrong is None and due:
                self._save()
            if wrong is not None:
                stopped = self._halted(*wrong)
        if not stopped and (wrong := self._settled(0)) is not None:  # a signal may arrive at any moment
            stopped = self._halted(*wrong)
        if self._saved != self._number:
            self._save()
        self._writer.flush()
        return Outcome(
            resumed_from=self._begin, steps=self._number, state=state_path(self._folder.path, self._number),
            stopped=stopped, signal=self._agreement.signal, alarms=tuple(self._alarms.found),
        )  # fmt: skip

    def _is_recorded(self, number: int) -> bool:
        return number == self._request.steps - 1 or self._is_on_a_clock(number)

    def _is_on_a_clock(self, number: int) -> bool:
        """Returns whether a step is recorded also where it is not the last, so that a resumed run may go on from it."""
        clocks = (self._request.every, self._request.histograms_every, self._request.noise_every)
        return any(every is not None and number % every == 0 for every in clocks)

    def _has_histograms(self, number: int) -> bool:
        return self._divides(self._request.histograms_every, number)

    def _divides(self, every: int | None, number: int) -> bool:
        """Returns whether a step is one of those that a number divides, or the last."""
        return every is not None and (number % every == 0 or number == self._request.steps - 1)

    def _take(self, number: int) -> None:
        """Starts a step, observed where it is due."""
        request = self._request
        batch = self._batch(number)
        self._alarms.keep(number, self._state, batch)
        if request.is_dumped(number):
            replicated = self._programs.everywhere(batch)
            if request.processes.writes:
                path = dump_path(self._folder.path, number)
                facts, timings = request.facts, Timings(request.phase)
                save_dump(request.model, self._state, replicated, path=path, facts=facts, timings=timings)
        trace = trace_path(self._folder.path, number) if request.is_profiled(number) else None
        with profiled(trace, (self._state, batch)) as wait, user_code(f"running {request.model.name}"):
            taken, record = self._observed(number, batch) if self._is_recorded(number) else (None, None)
            if taken is None or not self._is_on_a_clock(number):  # as a longer run takes it, not the observed program
                taken = self._programs.plain(self._state, self._sound, batch)
            wait(taken.state)
        self._state, self._sound = taken.state, taken.sound
        wishes = self._agreement.wishes()
        self._on_their_way.append(_OnItsWay(number, batch, taken.sound, taken.numbers, record, wishes))

    def _batch(self, number: int) -> Any:
        """Returns the batch of a step; where it cannot be had, the state before the step is saved first."""
        if number in self._again:
            return self._again.pop(number)
        place = self._request.placement
        try:
            batch = self._request.batch(number)
            spread = batch if place is None else place.spread(batch)
            if number == self._begin:
                self._request.processes.require_same(f"batch {number}", batch)
            return spread
        except GradscopeError:
            if number > self._begin and self._settled(0) is None:
                self._save()
            raise

    def _observed(self, number: int, batch: Any) -> tuple[Taken, Callable[[], StepRecord]]:
        # Before the step, which donates the state.
        noise = self._noise.start(self._state, batch) if self._divides(self._request.noise_every, number) else None
        follows = self._previous is not None
        previous = self._previous if follows else self._programs.no_gradients(self._state)
        histograms = self._has_histograms(number)
        stays, donated = self._is_on_a_clock(number), (self._state, previous)
        state, previous = donated if stays else copied(donated)  # they are donated
        taken = self._programs.observed(state, self._sound, previous, batch, histograms=histograms)
        self._previous = taken.gradients if stays else self._previous
        if not self._described:
            tensors = list(self._programs.tensors(taken.state, noise=self._request.noise_every is not None))
            self._history.describe(self._programs.program_facts(), tensors)
            self._alarms.describe(tensors)
            self._described = True
        size = self._request.arguments.batch_size
        examples = None if size is None else (number + 1) * size
        keys, recorded = self._programs.keys, taken.recorded
        assert recorded is not None
        made = partial(step_record, number, keys, recorded, examples=examples, follows=follows)
        return taken, made if noise is None else lambda: replace(made(), noise=noise())

    def _settled(self, ahead: int) -> tuple[_OnItsWay, list[Alarm]] | None:
        """Waits until no more than so many steps are on their way; returns the first that the run halts at."""
        while len(self._on_their_way) > ahead:
            step = self._on_their_way.popleft()
            with user_code(f"running {self._request.model.name}"):
                sound = bool(step.sound)
                self._agreement.heard(step.wishes)
            numbers = {name: float(value) for name, value in step.numbers.items()}
            self._request.progress(step.number, numbers)
            record = None if step.record is None else step.record()
            stays = self._is_on_a_clock(step.number)
            alarms = self._alarms.of_step(step.number, numbers, record, sound=sound, stays=stays)
            if record is not None:
                skipped = self._alarms.skipped + bool(alarms and self._request.on_alarm == "skip")
                self._writer.recorded(replace(record, numbers={**record.numbers, "skipped": skipped}))
            else:
                self._writer.loss(step.number, numbers["loss"])
            self._writer.in_place_of(self._folder.set_aside)
            if alarms and (self._request.on_alarm in {"stop", "skip"} or not sound):
                return step, alarms
            self._alarms.raised(alarms, before=None, batch=step.batch)
            self._alarms.judged(step.number + 1)
        return None

    def _halted(self, step: _OnItsWay, alarms: list[Alarm]) -> bool:
        """Goes back to before a step, and beyond it where its update is skipped; returns whether the run ends there."""
        number, sound = step.number, bool(step.sound)
        # Of a step that is not sound the state is still the one before it.
        before = self._alarms.state_before(number) if sound else self._state
        self._again = {each.number: each.batch for each in self._on_their_way}
        self._on_their_way.clear()
        self._previous = None  # those of this step, or of a later one
        self._sound = self._programs.sound_so_far()
        self._state, self._number = before, number
        skips = self._request.on_alarm == "skip"
        if not skips:
            self._save()
        self._alarms.raised(alarms, before=before, batch=step.batch)
        if not skips:
            return True
        self._state, self._number = self._alarms.skip(number, before), number + 1
        return False

    def _save(self) -> None:
        """Saves the state after the steps so far, behind everything that was recorded of them."""
        self._writer.flush()
        if self._request.processes.writes:
            facts = {**self._request.facts, "steps": self._number}
            path = state_path(self._folder.path, self._number)
            save_state(path, self._state, self._previous, facts, watch=self._alarms.to_json())
            self._folder.keep_states(self._keep)
            self._folder.set_aside.remove()
        self._agreement.saved()
        self._saved = self._number
