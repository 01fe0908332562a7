"""Collects provenance that does not depend on the framework: versions, the command line, and hashes of arrays."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np

from gradscope.dump.record import Json

#: The field that has the text of the program's source lines, where that was requested.
SOURCE_LINES: Final = "source_lines"


def versions(distributions: Iterable[str]) -> dict[str, Json]:
    """Returns the versions of those distributions that are installed, by name."""
    return {name: version for name in distributions if (version := _version(name)) is not None}


def command_line() -> list[Json]:
    """Returns the command line of this process, with the program and absolute paths reduced to their file names.

    It is empty where the program has none any more.
    """
    if not sys.argv:  # the program has taken its arguments away
        return []
    program = Path(sys.argv[0])
    # `python -m package` runs a file inside of it.
    name = program.parent.name if program.name == "__main__.py" else program.name
    return [name, *(without_folder(argument) for argument in sys.argv[1:])]


def content_hash(arrays: Sequence[Any]) -> str:
    """Returns the SHA-256 over the shapes, dtypes and bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        host = np.ascontiguousarray(array)
        digest.update(f"{host.dtype}{host.shape}".encode())
        digest.update(host.view(np.uint8).data if host.ndim else host.tobytes())
    return digest.hexdigest()


@cache  # its metadata is read from a file, and what is imported stays the same
def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def without_folder(argument: str) -> str:
    """Returns an argument of a command line, of an absolute path only the file name."""
    path = Path(argument)
    return path.name if path.is_absolute() else argument
