"""A live view shows a document on a terminal and redraws it when it changes, until `q` is pressed."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gradscope.cli.interrupts import Interrupts

if TYPE_CHECKING:
    from rich.text import Text

#: Seconds between two looks at whether something has changed.
_INTERVAL: Final = 0.25
_QUIT: Final = frozenset({"q", "Q", "\x04", ""})


def show_live(drawn: Callable[[], Text | None], interrupts: Interrupts) -> None:
    """Shows what a function returns on the terminal, and what it returns later.

    Args:
        drawn: Returns the text to show; None where it is still the one that is shown.
        interrupts: Puts the terminal back where the command is interrupted.
    """
    from rich.console import Console
    from rich.live import Live

    with (
        _single_keys(interrupts) as pressed,
        # Standard output stays itself, of which it is asked how large it is, and whether it can show Unicode.
        Live(
            console=Console(file=sys.stdout, highlight=False), auto_refresh=False, vertical_overflow="crop",
            redirect_stdout=False, redirect_stderr=False,
        ) as live,
    ):  # fmt: skip
        while True:
            text = drawn()
            if text is not None:
                text.no_wrap, text.overflow = True, "crop"
                live.update(text, refresh=True)
            if pressed(_INTERVAL) in _QUIT:
                return


@contextmanager
def _single_keys(interrupts: Interrupts) -> Generator[Callable[[float], str | None]]:
    """Yields a function that waits for a key for some seconds: the key, "" at the end of input, None for no key."""
    try:
        import termios
        import tty
    except ImportError:  # no terminal of POSIX: Ctrl-C ends the view
        yield _waited
        return
    if not sys.stdin.isatty():
        yield _waited
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def restore() -> None:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def pressed(seconds: float) -> str | None:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else None

    interrupts.on_interrupt(restore)
    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        restore()


def _waited(seconds: float) -> None:
    time.sleep(seconds)
