"""Standard streams are opened where they were closed, and encode any character without an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from io import BufferedWriter, FileIO, RawIOBase, TextIOWrapper
from typing import Any, Final, TextIO

_STDOUT: Final = 1
_STDERR: Final = 2

#: Standard output and standard error as they were before a model ran, where one does.
_KEPT: Final[dict[str, TextIO]] = {}

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
        # pipe) would lose the rest silently. The stream's own file stays with it: a model may use `sys.__stdout__`, and
        # whoever drops the new stream closes its file.
        file = FileIO(stream.fileno(), "w", closefd=False)
        stream = TextIOWrapper(BufferedWriter(file), encoding=stream.encoding, line_buffering=True)
    stream.reconfigure(errors="backslashreplace")
    return stream


def keep_stdout_for_results() -> None:
    """Makes `stdout()` the only way to standard output: the descriptor itself is standard error from here on.

    Compiled code, child processes and `os.write(1, ...)` write to the descriptor, whenever they like. `sys.stdout` is
    the way, too, for what prints help, until a model runs: see `stdout_to_stderr`.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)  # child processes do not inherit it
    os.dup2(_STDERR, _STDOUT)
    line_buffering = isinstance(sys.stdout, TextIOWrapper) and sys.stdout.line_buffering
    stream = BufferedWriter(FileIO(kept, "w"))
    sys.stdout = _safe(TextIOWrapper(stream, encoding=sys.stdout.encoding, line_buffering=line_buffering))
    _KEPT.update(stdout=sys.stdout, stderr=sys.stderr)


def stdout() -> TextIO | Any:
    """Returns the stream for results, whatever a model has put in the place of `sys.stdout`."""
    return _KEPT.get("stdout", sys.stdout)


def end_results() -> None:
    """Closes the stream for results, unless the model has kept it; what is printed from here on are messages."""
    import warnings  # only here: interrupts are not handled when this module is imported

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # which the model may have made an error
        _KEPT.clear()
        sys.stdout = sys.stderr


def stderr() -> TextIO | Any:
    """Returns the stream for messages, whatever a model has put in the place of `sys.stderr`."""
    return _KEPT.get("stderr", sys.stderr)


@contextmanager
def stdout_to_stderr() -> Generator[None]:
    """Redirects what Python code prints to standard error inside a `with` statement: standard output is for results.

    In a process that a model has, it stays redirected: threads that the model has started may go on to print.
    """
    if _KEPT:
        sys.stdout = sys.stderr
        yield
    else:
        with redirect_stdout(sys.stderr):
            yield
