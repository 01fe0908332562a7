"""Standard streams, made safe to use: open, and never failing over a character."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Final

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_streams() -> None:
    """Open what was closed before the process began, and have what a stream cannot encode written as an escape."""
    for name, mode in _MODES.items():  # by descriptor: what is opened gets the lowest number that is free, its own
        if getattr(sys, name) is None:
            # Otherwise the next file opened would get it, a dump, and what a library prints would go into that.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
