"""`print_version` prints the version. It is called before the program is built, which takes three times as long."""

from __future__ import annotations

import sys
from typing import Final

#: The spellings of the option.
VERSION_OPTIONS: Final = ("--version", "-V")


def print_version() -> None:
    """Prints the name and the version of the program."""
    sys.stdout.write(f"gradscope {version_of('gradscope-jax')}\n")


def version_of(distribution: str) -> str:
    """Returns the version of a distribution; "unknown" where it is not installed, as of a checkout on the path."""
    from importlib import metadata  # importing it takes 20 ms, and only these messages need it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
