"""A request states what a training run is to do, and an outcome how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gradscope.capturing.execution.arguments import Arguments
from gradscope.dump.record import Json
from gradscope.history.history_rows import Alarm
from gradscope.tracing.loading.model import Model
from gradscope.training.loop.placement import Placement
from gradscope.training.loop.processes import Processes
from gradscope.training.loop.run_alarms import OnAlarm
from gradscope.training.step import TrainStep

#: How many checkpoints are kept by default.
_KEPT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """`Saving` states when checkpoints are saved, beside the one after the last step.

    Attributes:
        steps: After every so many steps; None for never.
        seconds: After every so many seconds; None for never.
        keep: How many of the last ones are kept; None for three, or as many as a run has that is resumed.
    """

    steps: int | None = None
    seconds: float | None = None
    keep: int | None = None

    def kept(self, found: int) -> int:
        """Returns how many of the last ones are kept, of a run that begins with so many."""
        return max(_KEPT, found) if self.keep is None else self.keep


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """A `TrainRequest` states what a run is to do.

    Attributes:
        model: The model.
        arguments: The arguments of its loss.
        batch: Returns the batch of a step, by number.
        step: The step.
        steps: How many steps the run has in the end.
        every: Steps that this number divides are recorded, and the last.
        histograms_every: Steps that this number divides are recorded with histograms, and the last; None for none.
        noise_every: At steps that this number divides, and the last, the noise of gradients is recorded; None for none.
        microbatch: Examples in each of the gradients that it is computed from.
        trace_every: Steps that this number divides are profiled; None for none.
        tensorboard: Whether event files are written, too.
        placement: Where arrays are; None for JAX's default device.
        processes: The processes that take the steps together.
        saving: When checkpoints are saved.
        check_numerics: Whether the run stops at a loss or a gradient that is not finite.
        options: The options that decide the run's numbers, for its history.
        facts: What manifests and the history state about the run.
        is_dumped: Returns whether a step is dumped, by number.
        on_alarm: What an alarm does.
        keep_alarms: How many folders of alarms are kept.
        stop: Returns the number of the signal for which the run is to stop after the present step, or 0.
        progress: Called after each step with its number and its numbers.
        phase: Called with the name of each phase of a dump that the run makes.
        notify: Called with a line about each alarm.
    """

    model: Model
    arguments: Arguments
    batch: Callable[[int], Any]
    step: TrainStep
    steps: int
    every: int
    histograms_every: int | None = None
    noise_every: int | None = None
    microbatch: int = 1
    trace_every: int | None = None
    tensorboard: bool = False
    placement: Placement | None = None
    processes: Processes = field(default_factory=Processes)
    saving: Saving = field(default_factory=Saving)
    check_numerics: bool = True
    options: Mapping[str, str]
    facts: Mapping[str, Json]
    is_dumped: Callable[[int], bool] = lambda _number: False
    on_alarm: OnAlarm = "save"
    keep_alarms: int = 3
    stop: Callable[[], int] = lambda: 0
    progress: Callable[[int, Mapping[str, Any]], None] = lambda _number, _numbers: None
    phase: Callable[[str], None] = lambda _name: None
    notify: Callable[[str], None] = lambda _line: None

    def is_profiled(self, number: int) -> bool:
        """Returns whether this process profiles a step."""
        return self.trace_every is not None and number % self.trace_every == 0 and self.processes.writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An `Outcome` states how a run ended.

    Attributes:
        resumed_from: The number of steps that had been taken before; None for a new run.
        steps: The number of steps that it has taken in all.
        state: Its last checkpoint.
        stopped: Whether an alarm stopped it.
        signal: The number of the signal that stopped it, in this process or another; 0 for none.
        alarms: Its alarms.
    """

    resumed_from: int | None
    steps: int
    state: Path
    stopped: bool = False
    signal: int = 0
    alarms: tuple[Alarm, ...] = ()
