"""Recording options state what is recorded and saved of a training run, and what alarms do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradscope.training.loop.train_request import Saving

_RECORD: Final = "What is recorded and saved"
_ALARMS: Final = "Alarms"
_SECONDS: Final = re.compile(r"(\d+)s")


class AlarmAction(Enum):
    """`AlarmAction` is what an alarm does."""

    STOP = "stop"
    SAVE = "save"
    SKIP = "skip"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """`RecordOptions` state what is recorded when, and when the state is saved."""

    every: Annotated[
        int,
        typer.Option(
            min=1, metavar="K", help="Record the steps that this divides, and the last.", rich_help_panel=_RECORD
        ),
    ] = 10
    dump_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Write a dump of the steps that this divides, step-000100.npz.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    dump_at: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Write a dump of these steps, separated by commas.", rich_help_panel=_RECORD),
    ] = None
    histograms_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Record the histogram of every tensor, too, at the steps that this divides, and the last.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    per_example_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Record the noise of gradients, from those of each example, at the steps that this divides, and the "
            "last.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    microbatch: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Examples in each gradient that the noise is computed from: more than one where batch norm couples "
            "them.",
            rich_help_panel=_RECORD,
        ),
    ] = 1
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Write event files of TensorBoard into the folder, too, while the run goes on.",
            rich_help_panel=_RECORD,
        ),
    ] = False
    log_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Print a line every so many steps: loss, norm of the gradients, learning rate.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    trace_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Profile the steps that this divides, trace-000100, for TensorBoard and Perfetto.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    save_every: Annotated[
        str,
        typer.Option(
            metavar="K|SECONDSs",
            help="Save the state every so many steps, or seconds: 100, 600s.",
            rich_help_panel=_RECORD,
        ),
    ] = "600s"
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Keep so many of the last states: by default 3, or with --resume as many as there are.",
            rich_help_panel=_RECORD,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder from its last saved state.", rich_help_panel=_RECORD
        ),
    ] = False
    check_numerics: Annotated[
        bool,
        typer.Option(
            "--check-numerics/--no-check-numerics",
            help="Whether to stop at the first loss or gradient that is not finite, and to say where it began.",
            rich_help_panel=_RECORD,
        ),
    ] = True

    on_alarm: Annotated[
        AlarmAction,
        typer.Option(
            help="At an alarm stop before its step, save the step's state and batch, skip its update, or only note it.",
            rich_help_panel=_ALARMS,
        ),
    ] = AlarmAction.SAVE
    check: Annotated[
        str | None,
        typer.Option(
            metavar="RULES",
            help="Exit 1 where an alarm is of one of these rules, separated by commas, or the loss has a fault "
            "('broadcast', 'saturated'); 'all' means any of these. What may be meant ('climbing', 'learning', "
            "'unchanged', 'rounded', 'rectified', 'squashed', 'softmax', 'evaluation', 'repeated', 'stale', "
            "'misapplied', 'sorted' and others) counts where it is named.",
            rich_help_panel=_ALARMS,
        ),
    ] = None
    keep_alarms: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Keep what so many alarms saved: the first and the last ones; of one the last.",
            rich_help_panel=_ALARMS,
        ),
    ] = 3

    def checked(self) -> frozenset[str]:
        """Returns the rules and words of `--check`.

        Raises:
            UsageError: There is no such rule, or none is named.
        """
        from gradscope.cli.options.checked_findings import checked_alarms

        return checked_alarms(self.check)

    def dumped(self, steps: int) -> Callable[[int], bool]:
        """Returns the function that returns whether a step is dumped, of a run of so many.

        Raises:
            UsageError: `--dump-at` is no list of steps, or has one that the run does not take.
        """
        from gradscope.errors import UsageError

        listed = [] if self.dump_at is None else [each.strip() for each in self.dump_at.split(",")]
        if not all(each.isdecimal() for each in listed):
            raise UsageError(f"--dump-at {self.dump_at!r} is no list of steps", hint="as in --dump-at 0,100,250")
        chosen, every = {int(each) for each in listed}, self.dump_every
        if max(chosen, default=0) >= steps:
            raise UsageError(
                f"--dump-at {self.dump_at}: there is no step {max(chosen):,} among {steps:,}", hint="steps count from 0"
            )
        return lambda number: number in chosen or (every is not None and number % every == 0)

    def saving(self) -> Saving:
        """Returns when the state is saved.

        Raises:
            UsageError: `--save-every` is neither a number of steps nor one of seconds.
        """
        from gradscope.errors import UsageError
        from gradscope.training.loop.train_request import Saving

        seconds = _SECONDS.fullmatch(self.save_every)
        if seconds is not None:
            return Saving(seconds=float(seconds[1]), keep=self.keep)
        if not self.save_every.isdecimal() or int(self.save_every) == 0:
            raise UsageError(f"--save-every {self.save_every!r} is no number of steps", hint="100, or 600s for seconds")
        return Saving(steps=int(self.save_every), keep=self.keep)
