"""Printing: the only way that results reach standard output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from gradscope.report.screen import Screen


def screen() -> Screen:
    """What standard output is: a terminal of some width, or a pipe in which nothing is cut."""
    from gradscope.report.screen import Screen

    unicode = "utf" in (sys.stdout.encoding or "").lower()
    return Screen(width=_terminal_width() if sys.stdout.isatty() else None, unicode=unicode)


def _terminal_width() -> int:
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80


def print_text(text: Text) -> None:
    """Print laid out text; in colour on a terminal that wants it."""
    if not sys.stdout.isatty():
        sys.stdout.write(text.plain)
        return
    from rich.console import Console

    Console(file=sys.stdout, width=_terminal_width(), highlight=False).print(text, end="", soft_wrap=True)


def print_plain(text: str) -> None:
    """Print text as it is."""
    sys.stdout.write(text)


def say(line: str) -> None:
    """One line of remarks on standard error, safe to print."""
    from gradscope.naming import printable

    sys.stderr.write(printable(line) + "\n")
