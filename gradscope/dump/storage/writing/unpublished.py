"""Files that this process has begun to write are removed where a signal ends it: its finally blocks do not run then.

It imports nothing of gradscope: a command registers it before it knows whether anything is written.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_UNPUBLISHED: Final[set[Path]] = set()

# What a model has forked removes nothing that the command writes, when it comes to its end.
os.register_at_fork(after_in_child=_UNPUBLISHED.clear)


def begun(path: Path) -> None:
    """Remembers a file or folder that is about to be written, under a name that nothing else has."""
    _UNPUBLISHED.add(path)


def is_unpublished(path: Path) -> bool:
    """Returns whether this process has begun to write a file or folder, and not ended."""
    return path in _UNPUBLISHED


def ended(path: Path) -> None:
    """Forgets a file or folder, which has been published or removed."""
    _UNPUBLISHED.discard(path)


def remove_unpublished() -> None:
    """Removes all that was begun and has not ended. It may be called at any time, from any thread, repeatedly."""
    for path in list(_UNPUBLISHED):
        with suppress(OSError):
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
