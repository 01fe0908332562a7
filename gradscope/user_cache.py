"""Names the folders in which gradscope keeps what it compiled, for the next process."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Returns a folder of the user's cache: `$XDG_CACHE_HOME/gradscope/NAME`, by default `~/.cache/gradscope/NAME`.

    Args:
        name: What is kept in it.

    Raises:
        RuntimeError: The user has no home, or one with a name that libraries do not take.
    """
    # What is kept is run: a path that is not absolute would be another folder, of anybody's, wherever a command starts.
    # The specification of the variable says, too, that such a one does not count.
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".cache"
    if not base.is_absolute():
        raise RuntimeError(f"the home folder {str(Path.home())!r} is not absolute")
    if not is_unicode(base):
        raise RuntimeError(f"the name of the folder {str(base)!r} is no UTF-8")
    return base / "gradscope" / name


def is_unicode(path: Path) -> bool:
    """Returns whether a library that reads the names of files as UTF-8 takes a path."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True
