"""`print_version` prints the version. It is called before the program is built, which takes three times as long."""

from __future__ import annotations

import sys
from typing import Final

#: The spellings of the option.
VERSION_OPTIONS: Final = ("--version", "-V")


def print_version() -> None:
    """Prints the name and the version of the program."""
    from importlib.metadata import version

    sys.stdout.write(f"gradscope {version('gradscope-jax')}\n")
