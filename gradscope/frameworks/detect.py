"""Detection: which framework an object belongs to, asked only of frameworks that the user's code has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from gradscope.frameworks.adapter import Adapter

#: The module of a framework that defines its modules, and ours that adapts them.
_ADAPTERS: Final = (
    ("flax.linen", "linen"),
    ("flax.nnx", "nnx"),
    ("equinox", "equinox"),
    ("haiku", "haiku"),
    ("keras", "keras"),
)


def adapter_of(found: Any, *, train: bool) -> Adapter | None:
    """The adapter of a framework's module; None for an object that is none.

    Args:
        found: Any object.
        train: Whether the module is to run as in training.
    """
    return next(filter(None, (adapters.adapt(found, train=train) for adapters in _loaded())), None)


def builder_of(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """What builds a module of a framework's class, or of a function that wants random keys; None for anything else.

    Args:
        found: Any object.
        seed: Seeds what the module draws when it is built.
    """
    return next(filter(None, (adapters.builder(found, seed=seed) for adapters in _loaded())), None)


def _loaded() -> Iterator[ModuleType]:
    for library, name in _ADAPTERS:
        if library in sys.modules:
            yield import_module(f"gradscope.frameworks.{name}")
