"""Library files: which source files belong to a model, and which to the libraries that it uses."""

from __future__ import annotations

import site
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

import jax

#: Packages whose frames are never "the user's line": JAX, and the libraries that models are written with.
_LIBRARIES: Final = ("jax", "jaxlib", "flax", "equinox", "haiku", "keras", "optax", "gradscope")

_PACKAGE: Final = str(Path(__file__).resolve().parents[2]) + "/"


@cache
def is_library_file(file_name: str) -> bool:
    """Returns whether a file belongs to JAX, a modelling library, the standard library or gradscope."""
    if file_name.startswith("<"):
        return True
    if file_name.startswith(_PACKAGE):
        return not file_name.startswith(_PACKAGE + "models/")  # the zoo, where an installed wheel keeps it
    return file_name.startswith(_library_folders())


@cache
def is_file_of(library: str, file_name: str) -> bool:
    """Returns whether a file belongs to one library."""
    return file_name.startswith(tuple(f"{folder}/{library}/" for folder in _package_folders()))


@cache
def _library_folders() -> tuple[str, ...]:
    libraries = [f"{folder}/{name}/" for folder in _package_folders() for name in _LIBRARIES]
    standard = [sysconfig.get_path("stdlib") + f"/{name}" for name in ("contextlib.py", "functools.py", "threading.py")]
    return (*libraries, *standard)


@cache
def _package_folders() -> frozenset[str]:
    # JAX's own folder too: a .pth file may put it, and what is installed with it, on the path from anywhere.
    beside_jax = str(Path(jax.__file__).resolve().parents[1])
    return frozenset(
        {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), beside_jax}
    )
