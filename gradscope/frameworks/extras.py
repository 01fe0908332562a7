"""Extras: which optional dependency of gradscope brings a package that a model misses. Imports nothing itself."""

from __future__ import annotations

from typing import Final

#: The extra that installs a package, by the name it is imported under.
_EXTRAS: Final = {"flax": "flax", "equinox": "equinox", "haiku": "haiku", "keras": "keras", "orbax": "orbax"}


def install_hint(module: str | None) -> str | None:
    """What to do about a module that is missing; None where gradscope has no extra for it.

    Args:
        module: Its dotted name, as a `ModuleNotFoundError` has it.
    """
    extra = _EXTRAS.get((module or "").partition(".")[0])
    return None if extra is None else f"install it: pip install 'gradscope-jax[{extra}]'"
