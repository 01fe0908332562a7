"""`gradscope watch` shows a training run in the terminal while another process writes it."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradscope.cli.options.report_options import Format, FormatOptions, NameOptions
from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from rich.text import Text

    from gradscope.presentation import WatchReport, Which

#: Looks at a history that cannot be read before that counts: its writer may be about to close it.
_PATIENCE: Final = 8
#: Seconds after a change of the files in which every look reads them, and seconds between two reads otherwise.
_SETTLING_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0


def watch(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print the present state and end, as everywhere but on a terminal.")
    ] = False,
    name_options: NameOptions,
    format_options: FormatOptions,
) -> None:
    """Show a training run while it goes on: loss, norms, alarms, and the layers that changed most.

    On a terminal it is redrawn when a step is recorded, until you press q. Elsewhere, and with --json or another
    format, it prints the present state once.
    """
    keep_single_threaded()
    from gradscope.cli.printing import print_report
    from gradscope.cli.running.terminal.live_view import show_live
    from gradscope.presentation import Which

    which = Which(selection=name_options.selection())
    if once or format_options.chosen is not Format.TABLE or not sys.stdout.isatty():
        print_report(_report(run, which), format_options.chosen)
        return
    show_live(_Drawn(run, which), context.obj)


def _report(run: Path, which: Which) -> WatchReport:
    from gradscope.history.history_reader import History
    from gradscope.presentation import watch_report

    # Opened anew each time: what is open may be without the log that a writer has begun since.
    with History(run) as history:
        return watch_report(str(run), history, which)


class _Drawn:
    """Returns the text of a run when it is called, None where it would be the one that it returned last."""

    def __init__(self, run: Path, which: Which) -> None:
        self._run = run
        self._which = which
        self._seen: object = None
        self._changed_at = 0.0
        self._read_at = -math.inf
        self._text: Text | None = None
        self._failures = 0

    def __call__(self) -> Text | None:
        from gradscope.cli.printing import screen
        from gradscope.errors import DumpError
        from gradscope.history.folder.run_files import written_at
        from gradscope.presentation import to_text

        size, now = screen(), time.monotonic()
        seen = (written_at(self._run), size)
        if seen != self._seen:
            self._seen, self._changed_at = seen, now
        # A commit is on the disk before other processes see it.
        elif now - self._changed_at > _SETTLING_SECONDS and now - self._read_at < _AGAIN_SECONDS:
            return None
        self._read_at = now
        try:
            text = to_text(_report(self._run, self._which), size)
        except DumpError:
            self._failures += 1
            if self._text is None or self._failures > _PATIENCE:
                raise
            return None
        self._failures = 0
        if text == self._text:
            return None
        self._text = text.copy()
        return text
