"""Standard streams, made safe to use: open, and never failing over a character."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import Final, TextIO

_STDOUT: Final = 1
_STDERR: Final = 2

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_streams() -> None:
    """Open what was closed before the process began, and have what a stream cannot encode written as an escape."""
    for name, mode in _MODES.items():  # by descriptor: what is opened gets the lowest number that is free, its own
        if getattr(sys, name) is None:
            from pathlib import Path  # not above: no guard against interrupts stands yet, and it takes 15 ms

            # Otherwise the next file opened would get it, a dump, and what a library prints would go into that.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    sys.stdout, sys.stderr = map(_safe, (sys.stdout, sys.stderr))


def _safe(stream: TextIO) -> TextIO:
    if not isinstance(stream, TextIOWrapper):
        return stream
    if isinstance(stream.buffer, RawIOBase):
        # Under PYTHONUNBUFFERED. What an operating system does not take at once, of a full disk or an interrupted pipe,
        # would be lost without a word.
        stream = TextIOWrapper(BufferedWriter(stream.buffer), encoding=stream.encoding, line_buffering=True)
    stream.reconfigure(errors="backslashreplace")
    return stream


@contextmanager
def remarks_aside(*, native: bool = False) -> Generator[None]:
    """What is printed inside goes to standard error: standard output is for results.

    Args:
        native: What compiled code prints, too. Gloo, through which CPU processes talk, greets on standard output.
    """
    if not native:
        with redirect_stdout(sys.stderr):
            yield
        return
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)
