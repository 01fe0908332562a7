"""Names the folders in which gradscope keeps what it compiled, for the next process."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Returns a folder of the user's cache: `$XDG_CACHE_HOME/gradscope/NAME`, by default `~/.cache/gradscope/NAME`.

    Args:
        name: What is kept in it.

    Raises:
        RuntimeError: The user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradscope" / name
