"""Files and folders that this process may not read: root, as which tests run in containers, may read every one."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Makes the system refuse to open a file, or to list a folder and to say what is in it."""
    for module, name in ((os, "open"), (os, "listdir"), (os, "scandir"), (io, "open")):
        monkeypatch.setattr(module, name, _refusing(getattr(module, name), path, {path}))
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name), path, set()))


def _refusing(function: Callable[..., Any], folder: Path, too: Collection[Path]) -> Callable[..., Any]:
    def refused(at: Any = ".", *args: Any, **kwargs: Any) -> Any:
        path = Path(at).absolute() if isinstance(at, str | os.PathLike) else Path()
        if path in too or folder in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(at))
        return function(at, *args, **kwargs)

    return refused
