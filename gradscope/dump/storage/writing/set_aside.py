"""Files of a folder are set aside, and put back or removed when it is known whether there is what replaces them.

They are renamed into a folder inside theirs, whose name tells how far that has come, so that `recover` completes it,
whatever ended the process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.partial_file import sync_folder

#: Beginning of the names of these folders.
_PREFIX: Final = ".gradscope-"
#: What follows, where some of the files are in it, all, or it is of no use any more.
_MOVING, _ALL, _REMOVING = "moving", "replaced", "removing"


def folder_aside_of(folder: Path, name: str) -> Path | None:
    """Returns where a file of a folder is that waits for what replaces it, or is being set aside; None for neither."""
    for state in (_ALL, _MOVING) if not (folder / name).exists() else (_ALL,):
        aside = folder / f"{_PREFIX}{state}"
        if (aside / name).exists() and not aside.is_symlink():
            return aside
    return None


class SetAside:
    """A `SetAside` has the files that are set aside in one folder; only one process has it at a time.

    Args:
        folder: The folder.
        is_replacement: Whether a path in the folder is that of what replaces them, which does not stay beside them.

    Attributes:
        waits: Whether there are files that wait for what replaces them.
    """

    def __init__(self, folder: Path, is_replacement: Callable[[Path], bool]) -> None:
        self._folder = folder
        self._is_replacement = is_replacement
        self.waits = False
        self._moving, self._all, self._removing = (folder / f"{_PREFIX}{state}" for state in (_MOVING, _ALL, _REMOVING))

    @property
    def names(self) -> frozenset[str]:
        """The names that folders of files set aside have."""
        return frozenset(each.name for each in (self._moving, self._all, self._removing))

    def put(self, paths: Iterable[Path]) -> None:
        """Sets files and folders aside.

        Raises:
            MachineError: The folder cannot be written.
        """
        with machine_errors("replace", self._folder):
            self._moving.mkdir(exist_ok=True)
            for path in paths:
                path.rename(self._moving / path.name)
            self._moving.rename(self._all)
        self.waits = True

    def remove(self) -> None:
        """Removes them, where there are any, since there is what replaces them.

        Raises:
            MachineError: The folder cannot be written.
        """
        if self.waits:
            with machine_errors("replace", self._folder):
                self._all.rename(self._removing)
                self.waits = False
                sync_folder(self._folder)
                shutil.rmtree(self._removing)

    def recover(self) -> None:
        """Puts back what was set aside and not removed, by this process or one that died, in place of what is there.

        Raises:
            MachineError: The folder cannot be written.
        """
        with machine_errors("write to", self._folder):
            for each in (self._moving, self._all, self._removing):
                if each.is_symlink():  # to a folder whose files are not ours to move
                    each.unlink()
            if self._removing.is_dir():
                shutil.rmtree(self._removing)
            if self._all.is_dir():
                for path in self._folder.iterdir():
                    if self._is_replacement(path):
                        (shutil.rmtree if path.is_dir() else Path.unlink)(path)
                self._all.rename(self._moving)
            if self._moving.is_dir():
                for path in self._moving.iterdir():
                    path.rename(self._folder / path.name)
                self._moving.rmdir()
        self.waits = False
