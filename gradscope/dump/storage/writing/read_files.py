"""Remembers the files that a model's code opens to read, so that what is written of the model replaces none of them.

Python reports each file that it opens (`sys.addaudithook`), whoever opens it: `open`, `numpy.load`, `pathlib`. Those
that libraries open in C, such as HDF5 and TensorFlow, are not reported.

Why files are remembered only while a block runs (2026-11): gradscope opens files, too, such as the dump that is to be
replaced. The hook cannot be removed. It is called 4,000 times in `dump mlp` and 45,000 times in `dump resnet50`, which
takes 1 ms and 10 ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: The most files that are remembered: a pipeline of images may open a million.
_MOST_FILES: Final = 10_000


class _Reads:
    """_Reads has the paths of the files that were opened, and how many blocks remember and ignore them now."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self.blocks = self.pauses = 0
        self.hooked = False

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Remembers a file that is opened to read; is called for everything that Python reports."""
        if event == "open" and self.blocks and not self.pauses and len(self.paths) < _MOST_FILES:
            path, _, flags = arguments
            reads = isinstance(flags, int) and flags & os.O_ACCMODE != os.O_WRONLY
            if reads and isinstance(path, str | bytes | os.PathLike):
                with suppress(OSError, ValueError):  # the working folder may be gone
                    self.paths[os.path.abspath(os.fsdecode(path))] = None  # noqa: PTH100 - a Path takes longer


_READS: Final = _Reads()


@contextmanager
def reads_remembered(*, anew: bool = False) -> Generator[None]:
    """Remembers the files that are opened to read while the block runs, in any thread.

    Args:
        anew: Whether those that were opened before are forgotten, because another model read them.
    """
    if anew:
        _READS.paths.clear()
    if not _READS.hooked:
        _READS.hooked = True
        sys.addaudithook(_READS.see)
    _READS.blocks += 1
    try:
        yield
    finally:
        _READS.blocks -= 1


@contextmanager
def reads_ignored() -> Generator[None]:
    """Remembers no file that is opened while the block runs, because the model's code opens none."""
    _READS.pauses += 1
    try:
        yield
    finally:
        _READS.pauses -= 1


def remembered_reads() -> Iterator[str]:
    """Returns the files that were opened, but for those of the Python installation."""
    installed = (sys.prefix + os.sep, sys.base_prefix + os.sep)
    return (path for path in tuple(_READS.paths) if not path.startswith(installed))
