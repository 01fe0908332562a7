"""`gradscope export` writes what a training run recorded for other programs: CSV, or TensorBoard."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.report_options import SelectionOptions
from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradscope.history.history_reader import History
    from gradscope.history.history_rows import TensorRow


class Kind(StrEnum):
    """A `Kind` is a format to which a run is exported."""

    CSV = "csv"
    TENSORBOARD = "tensorboard"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")],
    *,
    to: Annotated[
        Kind, typer.Option("--to", metavar="NAME", help=f"What it is exported to: {', '.join(Kind)}.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH",
            help="The file of CSV, by default standard output; the folder of event files, by default the run's own.",
        ),
    ] = None,
    selection_options: SelectionOptions,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file, or the event files in the folder.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Write what a training run recorded for other programs: one long table of CSV, or event files of TensorBoard.

    TensorBoard needs tensorboardX, of the extra 'tensorboard'. Nothing here needs JAX.
    """
    keep_single_threaded()
    from gradscope.cli.printing import say
    from gradscope.errors import UsageError
    from gradscope.history.exporting.long_table import csv_parts
    from gradscope.history.history_reader import History
    from gradscope.presentation import Which

    if selection_options.depth is not None:
        raise UsageError("--depth is of dumps, and an export is of a training run", hint="leave it out")
    which = Which(selection=selection_options.selection(), families=selection_options.family_set())
    with History(run) as history:
        which.require_matches(history.tensors.values())
        if to is Kind.CSV:
            parts = csv_parts(history, which.selects, with_steps=which.families is None)
            written = _export_csv(parts, run, output, force=force)
        else:
            written = _export_events(history, which.selects, run if output is None else output, force=force)
    if written and not quiet:
        say(f"wrote {written}")


def _export_csv(parts: Iterator[str], run: Path, output: Path | None, *, force: bool) -> str:
    """Returns what was written where; nothing of standard output."""
    from gradscope.cli.printing import print_parts
    from gradscope.dump.storage.storage_errors import machine_errors
    from gradscope.dump.storage.writing.atomic_file import write_parts
    from gradscope.dump.storage.writing.target_path import checked_target, files_of, is_standard_output, is_stream

    if output is not None and is_standard_output(output):
        output = None
    target = None
    if output is not None and not is_stream(output):
        target = checked_target(output, force=force, inputs=files_of([run]))
    if output is None:
        print_parts(parts)
        return ""
    lines = 0

    def encoded() -> Iterator[bytes]:
        nonlocal lines
        for part in parts:
            lines += part.count("\n")
            yield part.encode()

    if target is None:
        with machine_errors("write to", output), output.open("wb") as file:
            file.writelines(encoded())
    else:
        write_parts(target, encoded(), replace=force)
    return f"{output}: {lines - 1:,} numbers"


def _export_events(history: History, selects: Callable[[TensorRow], bool], folder: Path, *, force: bool) -> str:
    """Returns what was written where."""
    from gradscope.dump.storage.storage_errors import machine_errors
    from gradscope.dump.storage.writing.atomic_folder import folder_aside, made_folder
    from gradscope.dump.storage.writing.companions import WAITING_SECONDS, alone_in
    from gradscope.dump.storage.writing.partial_file import sync_folder
    from gradscope.errors import UsageError
    from gradscope.history.exporting.event_files import export_events
    from gradscope.history.folder.run_files import event_files_in
    from gradscope.naming import printable
    from gradscope.naming.wording import counted

    def event_files() -> list[Path]:
        """Returns those that will be replaced."""
        with machine_errors("write to", folder):
            before = event_files_in(folder) if folder.exists() else []
        if before and not force:
            raise UsageError(
                f"{printable(str(folder))} has event files already", hint="name another folder, or replace with --force"
            )
        return before

    event_files()  # before the work
    # They are made aside: what ends the process leaves no part of them, and the old ones.
    with machine_errors("write to", folder), made_folder(folder), folder_aside(folder.absolute() / "events") as aside:
        steps = export_events(history, selects, aside)
        with alone_in(folder, waiting=WAITING_SECONDS), machine_errors("write to", folder):
            before = event_files()  # another process may have written some meanwhile
            made = [path.replace(folder / path.name) for path in event_files_in(aside)]
            for path in before:
                if path not in made:
                    path.unlink()
            sync_folder(folder)
    return f"{counted(steps, 'step')}: tensorboard --logdir {folder}"
