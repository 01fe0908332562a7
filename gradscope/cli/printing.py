"""Printing is the only way that results reach standard output, in the requested format."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from gradscope.cli.leaving import keep
from gradscope.cli.options.report_options import ComparisonFormat, Format
from gradscope.cli.standard_streams import stdout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

    from gradscope.presentation import Report, Screen

#: Columns of a terminal that does not report its width.
_USUAL_WIDTH = 80


def import_report() -> None:
    """Imports what makes the report of a dump and renders it, which takes a twentieth of a second."""
    for name in ("reports.dump_report", "render.formats"):
        import_module(f"gradscope.presentation.{name}")


def print_report(report: Report, output_format: Format | ComparisonFormat, target: str = "") -> None:
    """Prints the report of a command.

    Args:
        report: The report.
        output_format: How it is written.
        target: The model that it is about, as the user named it from here; "" where that is not known.
    """
    keep(report)
    from gradscope.presentation.render import formats as render

    if output_format == Format.TABLE:
        _print_text(render.to_text(report, screen()))
    elif output_format == Format.JSON:
        print_parts(render.json_parts(report))
    elif output_format == Format.CSV:
        print_parts(render.csv_parts(report))
    elif output_format == Format.MARKDOWN:
        print_plain(render.to_markdown(report))
    elif output_format == ComparisonFormat.JUNIT:
        print_plain(render.to_junit(report))
    else:
        from gradscope.cli.source_files import path_in_repository

        print_plain(render.to_github(report, partial(path_in_repository, target=target)))


def print_plain(text: str) -> None:
    """Prints text unchanged, and flushes it.

    Raises:
        MachineError: It cannot be delivered, because the disk is full, for example.
    """
    print_parts([text])


def print_parts(parts: Iterable[str]) -> None:
    """Prints text unchanged, each part when it is made, and flushes it.

    Raises:
        MachineError: It cannot be delivered.
    """
    from gradscope.errors import MachineError

    try:
        stdout().writelines(parts)
        stdout().flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"cannot write to standard output: {error.strerror}") from error


def print_line(line: str) -> None:
    """Prints one line of results, safe for a terminal."""
    from gradscope.naming import printable

    print_plain(printable(line) + "\n")


def say(line: str) -> None:
    """Prints a one-line message on standard error, safe for a terminal.

    A message that cannot be delivered is lost: a training run goes on when its terminal has been closed.
    """
    from gradscope.naming import printable

    if sys.stderr is not None:  # which may be a proxy for what progress is shown on
        # ValueError: the model has closed it; AttributeError: it has put no stream in its place.
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(printable(line) + "\n")


def screen() -> Screen:
    """Returns the size of standard output where it is a terminal, and whether it can show Unicode."""
    from gradscope.presentation import Screen

    unicode = "utf" in (stdout().encoding or "").lower()
    if not stdout().isatty():
        return Screen(unicode=unicode)
    size = os.get_terminal_size(stdout().fileno())
    return Screen(
        width=_requested("COLUMNS") or size.columns or _USUAL_WIDTH,
        height=_requested("LINES") or size.lines or None,
        unicode=unicode,
    )


def _requested(variable: str) -> int:
    """Returns the size that the environment asks for; 0 where it asks for none."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 0


def _print_text(text: Text) -> None:
    if not stdout().isatty():
        print_plain(text.plain)
        return
    from rich.console import Console

    # The lines fit already, so the console must not wrap them.
    Console(file=stdout(), highlight=False).print(text, end="", soft_wrap=True)
