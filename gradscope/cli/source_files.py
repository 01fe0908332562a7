"""Source files are found by name in the repository: a dump has their names without folders."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

#: Folders that have no sources of the repository's own, beside hidden ones and virtual environments.
_FOREIGN: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})


def path_in_repository(name: str, target: str = "") -> str | None:
    """Returns the path of a file, relative to the root of the repository, from the file's name.

    The root is `GITHUB_WORKSPACE` where the working directory is inside it, otherwise the working directory.

    Args:
        name: The name, without a folder.
        target: The model as the user named it, `src/model.py:NAME`, from the working directory: its file is meant where
            several have the name.

    Returns:
        The path with forward slashes; None where no file has the name, or more than one and none is the target's.
    """
    root = _root()
    paths = _paths_by_name(root).get(name, [])
    file = Path(target.partition(":")[0])
    if len(paths) > 1 and file.name == name:
        paths = [path for path in paths if root / path == Path.cwd() / file]
    return paths[0] if len(paths) == 1 else None


def _root() -> Path:
    here, workspace = Path.cwd(), os.environ.get("GITHUB_WORKSPACE")
    return Path(workspace) if workspace and here.is_relative_to(workspace) else here


@cache
def _paths_by_name(root: Path) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for folder, inner, files in os.walk(root):
        inner[:] = [each for each in inner if not _is_foreign(Path(folder, each))]
        for file in files:
            if file.endswith(".py"):
                paths.setdefault(file, []).append(Path(folder, file).relative_to(root).as_posix())
    return paths


def _is_foreign(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _FOREIGN or (folder / "pyvenv.cfg").exists()
