"""File bounds limit the memory that the tensors of a file take: compression may hide a thousand times a file's size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gradscope.arrays.dtypes import itemsize, storable
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.errors import DumpError
from gradscope.naming import printable

#: Bytes that tensors may take beyond those of their file. It allows any file that is not compressed.
_MOST_BEYOND: Final = 256 << 20

#: How many times as large as its folder the arrays of an Orbax checkpoint may be, which is always compressed: an
#: optimizer's first moments and averages of them are zeros, which take no bytes.
_MOST_TIMES: Final = 16


def require_bounded(path: Path, dump: DumpSource, keys: Iterable[str]) -> None:
    """Raises an error where tensors of a file would take far more memory than the file has bytes.

    Args:
        path: The file, or a folder of files.
        dump: What was opened there.
        keys: The tensors that are to be read together.

    Raises:
        DumpError: They would; nothing has been read.
    """
    stated, stored = sum(map(_bytes_of, map(dump.entry, keys))), _stored(path)
    if stated > stored + _MOST_BEYOND:
        hint = f"store it without compression: {_MOST_BEYOND >> 20} MiB more than a file's own size are read"
        raise DumpError(f"{printable(str(path))} has {_sizes(stored, stated)}", hint=hint)


def require_bounded_arrays(path: Path, arrays: Iterable[tuple[Sequence[int], np.dtype]]) -> None:
    """Raises an error where arrays of a folder would take far more memory than a checkpoint that is always compressed.

    Args:
        path: The folder.
        arrays: The shape and the dtype of each.

    Raises:
        DumpError: They would; nothing has been read. The message does not name the folder.
    """
    stated, stored = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays), _stored(path)
    if stated > _MOST_TIMES * stored + _MOST_BEYOND:
        most = f"{_MOST_TIMES} times a folder's own size and {_MOST_BEYOND >> 20} MiB are read"
        hint = f"write its arrays as .safetensors or .npz, without compression: {most}"
        raise DumpError(f"it has {_sizes(stored, stated)}", hint=hint)


def _stored(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(each.stat().st_size for each in files if each.is_file())


def _sizes(stored: int, stated: int) -> str:
    return f"{stored >> 20:,} MiB, and its tensors would take {stated >> 20:,} MiB of memory"


def _bytes_of(entry: Entry) -> int:
    return math.prod(entry.shape) * (itemsize(entry.dtype) if storable(entry.dtype) else 0)
