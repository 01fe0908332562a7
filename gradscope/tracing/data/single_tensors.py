"""Single tensors are read from files: `FILE`, or `FILE:KEY` where the file has several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradscope.dump.reader import open_dump
from gradscope.dump.storage.storage_errors import permitted
from gradscope.errors import DumpError
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.tracing.data.files.file_bounds import require_bounded


def tensor_from_file(spelling: str) -> Any:
    """Returns the tensor that a spelling names, in its logical dtype.

    Args:
        spelling: A path, or a path, a colon and the name of one of the tensors in the file.

    Returns:
        The tensor.

    Raises:
        DumpError: The file has no such tensor, or has several and none is named.
        MachineError: The file cannot be read.
    """
    path, key = _path_and_key(spelling)
    with open_dump(path) as file:
        keys = file.keys()
        names = {name: full for full in keys for name in (full, full.partition("/")[2])}
        if key is None and len(keys) != 1:
            raise DumpError(f"{path} has {len(keys)} tensors", hint=f"name one of them: {path}:NAME")
        if key is not None and key not in names:
            raise DumpError(f"{path} has no tensor {key}", hint=nearest_hint(key, names))
        full = keys[0] if key is None else names[key]
        require_bounded(path, file, [full])
        return file.array(full)


def file_of(spelling: str) -> Path:
    """Returns the path of the file in which a spelling names a tensor."""
    return _path_and_key(spelling)[0]


def _path_and_key(spelling: str) -> tuple[Path, str | None]:
    full = Path(spelling)
    path, colon, key = spelling.rpartition(":")
    with permitted(full):
        return (full, None) if full.exists() or not colon else (Path(path), key)
