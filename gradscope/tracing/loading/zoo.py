"""The zoo is the models that come with gradscope, found by name.

They are files like any user's. An installed wheel has them inside the package, a checkout next to it; either way they
are loaded by file path, and their folder never joins `sys.path`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[2]


@cache
def zoo_folder() -> Path:
    """Returns the folder of the zoo's files."""
    installed = _PACKAGE / "models"
    return installed if installed.is_dir() else _PACKAGE.parent / "models"


@cache
def zoo_names() -> tuple[str, ...]:
    """Returns the names of the zoo's models, in alphabetical order."""
    return tuple(sorted(file.stem for file in zoo_folder().glob("[!_]*.py")))


def zoo_file(name: str) -> Path:
    """Returns the file of the zoo's model `name`."""
    return zoo_folder() / f"{name}.py"
