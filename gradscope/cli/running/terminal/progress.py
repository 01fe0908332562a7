"""Progress shows the present phase of a slow command, on standard error and only on a terminal."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gradscope.cli.standard_streams import stderr

if TYPE_CHECKING:
    from rich.status import Status

#: The sentence that is shown for each phase.
_PHASES: Final = {
    "trace": "tracing the loss",
    "compile": "compiling",
    "initialise": "making parameters and batch",
    "run": "running forward and backward",
    "write": "measuring and writing",
    "differences": "taking finite differences",
    "search for the origin": "searching for the operation where the first NaN or Inf began",
    "explain": "looking into gradients that are zero",
    "self-check": "running the plain program",
}


class Progress:
    """A `Progress` shows the present phase in one line, which the next phase replaces and the end removes.

    What a terminal does not take is lost: it may have been closed.

    Args:
        quiet: Whether to show nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._silent = quiet or not stderr().isatty()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if not self._silent:
            from rich.console import Console

            with suppress(OSError):
                status = Console(file=stderr()).status("starting", spinner="dots")
                status.start()
                self._status = status
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def phase(self, name: str) -> None:
        """Shows a phase of `capturing.timings`."""
        self.show(_PHASES.get(name, name))

    def show(self, line: str) -> None:
        """Shows a line in place of the phase."""
        if self._status is not None:
            with suppress(OSError):
                self._status.update(line)
