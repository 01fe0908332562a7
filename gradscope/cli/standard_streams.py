"""Standard streams are opened where they were closed, and encode any character without an error."""

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
    """Opens the standard streams that are closed, and writes characters that a stream cannot encode as escapes."""
    # A file that is opened gets the lowest free descriptor, which in this order is the stream's own. Otherwise the next
    # opened file, a dump for example, would get it and receive what libraries print.
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            from pathlib import Path  # imported only here: it takes 15 ms, and interrupts are not handled yet

            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    sys.stdout, sys.stderr = map(_safe, (sys.stdout, sys.stderr))


def _safe(stream: TextIO) -> TextIO:
    if not isinstance(stream, TextIOWrapper):
        return stream
    if isinstance(stream.buffer, RawIOBase):
        # Under PYTHONUNBUFFERED, a write that the operating system accepts only in part (a full disk, an interrupted
        # pipe) would lose the rest silently.
        stream = TextIOWrapper(BufferedWriter(stream.buffer), encoding=stream.encoding, line_buffering=True)
    stream.reconfigure(errors="backslashreplace")
    return stream


@contextmanager
def stdout_to_stderr(*, native: bool = False) -> Generator[None]:
    """Redirects standard output to standard error inside a `with` statement, because standard output is for results.

    Args:
        native: Whether the output of compiled code is redirected, too.
    """
    if not native:
        with redirect_stdout(sys.stderr):
            yield
        return
    # Gloo, the library through which CPU processes communicate, prints a greeting on standard output.
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)
