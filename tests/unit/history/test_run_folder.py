"""A run's folder is locked, or the reason that it cannot be is said, and nothing of it is left."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from gradscope.errors import MachineError
from gradscope.history.run_folder import RunFolder


def test_a_folder_whose_lock_fails_is_named_and_removed_if_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fail)
    descriptors = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(MachineError, match=r"cannot lock .*run: Input/output error"):
        RunFolder(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors
