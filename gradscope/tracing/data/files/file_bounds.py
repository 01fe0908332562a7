"""File bounds limit the memory that the tensors of a file take: compression may hide a thousand times a file's size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gradscope.arrays.dtypes import itemsize, storable
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.errors import DumpError
from gradscope.naming import printable

#: Bytes that tensors may take beyond those of their file. It allows any file that is not compressed.
_MOST_BEYOND: Final = 256 << 20


def require_bounded(path: Path, dump: DumpSource, keys: Iterable[str]) -> None:
    """Raises an error where tensors of a file would take far more memory than the file has bytes.

    Args:
        path: The file, or a folder of files.
        dump: What was opened there.
        keys: The tensors that are to be read together.

    Raises:
        DumpError: They would; nothing has been read.
    """
    stated = sum(map(_bytes_of, map(dump.entry, keys)))
    files = path.rglob("*") if path.is_dir() else (path,)
    stored = sum(each.stat().st_size for each in files if each.is_file())
    if stated > stored + _MOST_BEYOND:
        sizes = f"{stored >> 20:,} MiB, and its tensors would take {stated >> 20:,} MiB of memory"
        raise DumpError(
            f"{printable(str(path))} has {sizes}",
            hint=f"store it without compression: {_MOST_BEYOND >> 20} MiB more than a file's own size are read",
        )


def _bytes_of(entry: Entry) -> int:
    return math.prod(entry.shape) * (itemsize(entry.dtype) if storable(entry.dtype) else 0)
