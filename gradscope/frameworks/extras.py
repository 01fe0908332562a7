"""Extras are the optional dependencies of gradscope that install a package which a model needs.

Imports nothing itself.
"""

from __future__ import annotations

from typing import Final

#: The extra that installs a package, by the name it is imported under.
_EXTRAS: Final = {
    "flax": "flax",
    "equinox": "equinox",
    "haiku": "haiku",
    "keras": "keras",
    "orbax": "orbax",
    "optax": "train",
    "tensorboardX": "tensorboard",
}


def install_hint(module: str | None) -> str | None:
    """Returns a hint how to install a missing module; None where gradscope has no extra for it.

    Args:
        module: Its dotted name, as a `ModuleNotFoundError` has it.
    """
    extra = _EXTRAS.get((module or "").partition(".")[0])
    return None if extra is None else f"install it: pip install 'gradscope-jax[{extra}]'"
