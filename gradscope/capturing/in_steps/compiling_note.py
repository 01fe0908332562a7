"""`CompilingNote` says on a terminal that a step of the user's own loop is being compiled, which may take seconds."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TextIO

#: Seconds after which the note is shown: what is compiled sooner needs none.
_PATIENCE: Final = 1.0
#: Back to the start of the line, and clear it.
_CLEARED: Final = "\r\033[K"


class CompilingNote:
    """A `CompilingNote` is shown on standard error as long as the context lasts, and leaves no trace.

    It is silent where standard error is no terminal, so that nothing of it is in a log.

    Args:
        text: What is going on.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._shown: TextIO | None = None
        self._done = False
        self._at_once = threading.Lock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        # The user may have put something else in place of the stream, or closed it.
        with suppress(AttributeError, ValueError, RuntimeError):
            if sys.stderr.isatty():
                self._timer = threading.Timer(_PATIENCE, self._show)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._at_once:
            self._done = True
            if self._shown is not None:
                self._write(self._shown, _CLEARED)

    def _show(self) -> None:
        with self._at_once:
            if not self._done and (stream := sys.stderr) is not None:
                self._shown = stream
                self._write(stream, f"{_CLEARED}gradscope: {self._text}")

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
