"""A run that finds an alarm goes back to before its step, and saves or skips it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from gradscope.capturing.timings import Timings
from gradscope.dump.record import Json
from gradscope.history.alarms.alarm_rules import DIVERGING, NONFINITE
from gradscope.history.alarms.alarm_watch import AlarmWatch
from gradscope.history.database.schema import AFFINE, FAULTS
from gradscope.history.folder.run_files import alarm_path
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_rows import Alarm, StepRecord, TensorRow, fact_texts
from gradscope.tracing.loading.model import Model
from gradscope.training.loop.alarm_files import save_step
from gradscope.training.loop.step_programs import StepPrograms
from gradscope.training.recording.alarm_notes import alarm_facts, explained, write_alarms
from gradscope.training.recording.state_ring import StateRing
from gradscope.training.recording.step_rows import step_record
from gradscope.training.recording.unwritten_history import RunHistory
from gradscope.training.state import TrainState

if TYPE_CHECKING:
    from gradscope.history.exporting.event_files import EventFile

#: What an alarm does.
OnAlarm: TypeAlias = Literal["stop", "save", "skip", "note"]

#: Steps between two copies of the state.
_KEEP_EVERY: Final = 20


class RunAlarms:
    """`RunAlarms` are the alarms of one run.

    Args:
        model: The model.
        folder: The folder of the run.
        history: Its history.
        programs: Its step.
        is_observed: Returns which of the two programs took a step: the observed one, or the plain one.
        has_histograms: Returns whether a recorded step has histograms, likewise.
        on_alarm: What an alarm does.
        keep: How many folders of alarms are kept.
        writes: Whether this process is the one that writes the run.
        facts: What manifests state about the run.
        notify: Called with a line about what was done.
        phase: Called with the name of each phase of a dump that says where an alarm began.
        events: The event file, to which alarms are written, too; None for none.

    Attributes:
        found: The alarms of this run.
        skipped: Updates that were skipped.
    """

    def __init__(
        self, model: Model, folder: RunFolder, history: RunHistory, programs: StepPrograms, *,
        is_observed: Callable[[int], bool], has_histograms: Callable[[int], bool],
        on_alarm: OnAlarm, keep: int, writes: bool, facts: Mapping[str, Json],
        notify: Callable[[str], None], phase: Callable[[str], None], events: EventFile | None,
    ) -> None:  # fmt: skip
        self._model = model
        self._folder = folder
        self._history = history
        self._programs = programs
        self._is_observed = is_observed
        self._has_histograms = has_histograms
        self._events = events
        self._on_alarm: OnAlarm = on_alarm
        self._keep = keep
        self._writes = writes
        self._facts = facts
        self._notify = notify
        self._phase = phase
        self._ring = StateRing(_KEEP_EVERY)
        self._sizes: dict[str, int] = {}
        self._unreached: dict[str, str] = {}
        self._affine: set[str] = set()
        self._returned: dict[str, frozenset[str]] = {}
        self._watch = AlarmWatch(self._sizes, self._unreached, self._affine, self._returned)
        self.found: list[Alarm] = []
        self.skipped = 0

    def describe(self, tensors: Iterable[TensorRow]) -> None:
        """Learns what is recorded, and reports what is wrong with the loss whatever its numbers are."""
        self._sizes.update({each.key: math.prod(each.shape) for each in tensors if each.shape is not None})
        self._unreached.update(self._programs.unreached())
        self._affine.update(self._programs.affine())
        self._returned.update(self._programs.returned_by_readers())
        if self._affine:
            self._history.describe(fact_texts({AFFINE: sorted(self._affine)}))
        if faults := self._programs.faults():
            self._history.describe(fact_texts({FAULTS: faults}))
        for each in faults:
            self._notify(each.notice)

    def keep(self, number: int, state: TrainState, batch: Any) -> None:
        """Keeps what a step is going to be taken with."""
        if self._on_alarm != "note":
            self._ring.keep(number, state, batch)

    def of_step(
        self, number: int, numbers: Mapping[str, float], record: StepRecord | None, *, sound: bool, stays: bool
    ) -> list[Alarm]:
        """Returns the alarms of a step, which have no tensor yet where they are about the step.

        Args:
            number: The step.
            numbers: Its numbers.
            record: What was recorded of it; None where nothing was.
            sound: Whether its loss and gradients are finite.
            stays: Whether its record counts for those after it. That of a last step does not: the run that goes on from
                it has to be the one that did not stop there.
        """
        if not sound:
            nonfinite = Alarm(step=number, rule=NONFINITE, why="its loss or a gradient is not finite")
            return [*self._watch.diverging(number, numbers), nonfinite]
        norm = None if record is None or not stays else record.numbers.get("param_norm")
        alarms = self._watch.step(number, {**numbers, **({} if norm is None else {"param_norm": norm})})
        if record is not None:
            alarms = [self._watch.named(alarm, record.stats) for alarm in alarms]
        if record is not None and stays:
            alarms += self._watch.recorded(number, record.stats, record.unchanged, numbers.get("learning_rate"))
        return alarms

    def judged(self, number: int) -> None:
        """Lets go of what only steps before this one needed."""
        self._ring.judged(number)

    def raised(self, alarms: Sequence[Alarm], *, before: TrainState | None, batch: Any) -> None:
        """Writes alarms of one step, and saves the step where that is requested.

        Args:
            alarms: The alarms.
            before: The state before the step; None where it is to be computed again.
            batch: The step's batch.
        """
        if not alarms:
            return
        number = alarms[0].step
        if self._on_alarm != "note" or before is not None:
            state = self.state_before(number) if before is None else before
            alarms = self._saved(state, batch, [self._with_tensor(alarm, state, batch) for alarm in alarms])
        for alarm in alarms:
            self.found.append(alarm)
            self._history.alarm(alarm)
            if self._events is not None:
                self._events.alarm(alarm)
            self._notify(f"step {number:,}: {alarm.rule}: {'' if alarm.key is None else f'{alarm.key} '}{alarm.why}")

    def state_before(self, number: int) -> TrainState:
        """Returns the state before a step of late, bit for bit."""
        return self._ring.state_before(number, self._advanced)

    def skip(self, number: int, before: TrainState) -> TrainState:
        """Returns the state after a step whose update is skipped: the one before it, one step later."""
        self.skipped += 1
        self._watch.skipped()
        self._ring.clear()
        self._notify(f"step {number:,}: its update is skipped, {self.skipped:,} so far")
        return replace(before, step=before.step + 1)

    def to_json(self) -> dict[str, Any]:
        """Returns what a run that goes on from here has to remember."""
        return {"watch": self._watch.to_json(), "skipped": self.skipped}

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._watch.restore(found["watch"])
        self.skipped = found["skipped"]

    def _advanced(self, number: int, state: TrainState, batch: Any) -> TrainState:
        # By the program that took the step: the two agree to rounding only.
        return self._observed(number, state, batch).state if self._is_observed(number) else self._programs.plain(
            state, self._programs.sound_so_far(), batch
        ).state  # fmt: skip

    def _observed(self, number: int, state: TrainState, batch: Any) -> Any:
        previous, histograms = self._programs.no_gradients(state), self._has_histograms(number)
        sound = self._programs.sound_so_far()
        return self._programs.observed(state, sound, previous, batch, histograms=histograms)

    def _with_tensor(self, alarm: Alarm, state: TrainState, batch: Any) -> Alarm:
        """Returns an alarm about a step that was not recorded with the tensor that deviates, which running it shows."""
        if alarm.key is not None or alarm.rule in {NONFINITE, DIVERGING}:
            return alarm
        own = StateRing(1)
        own.keep(alarm.step, state, batch)  # a copy: the program donates the state
        taken = self._observed(alarm.step, own.state_before(alarm.step, self._advanced), batch)
        record = step_record(alarm.step, self._programs.keys, taken.recorded, examples=None, follows=False)
        return self._watch.named(alarm, record.stats)

    def _saved(self, state: TrainState, batch: Any, alarms: list[Alarm]) -> list[Alarm]:
        number = alarms[0].step
        batch = self._programs.everywhere(batch)
        if not self._writes:
            return alarms
        folder = alarm_path(self._folder.path, number)
        dump = save_step(self._model, state, batch, folder=folder, facts={**self._facts, **alarm_facts(alarms)},
                         timings=Timings(self._phase))  # fmt: skip
        named = [explained(each, dump) for each in alarms]
        write_alarms(folder, named, loss=dump.loss)
        for removed in self._folder.keep_alarms(self._keep, self._history.alarm_folders() | {folder.name}):
            self._history.release(removed)
        return [replace(alarm, folder=folder.name) for alarm in named]
