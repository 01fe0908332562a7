"""Detection: which framework an object belongs to, asked only of frameworks that the user's code has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from gradscope.frameworks.modules.adapter import Adapter, Variables
from gradscope.frameworks.modules.own_format import OwnFormat

#: The module of a framework that defines its modules, and ours that adapts them.
_ADAPTERS: Final = (
    ("flax.linen", "linen"),
    ("flax.nnx", "nnx"),
    ("equinox", "equinox.equinox_adapter"),
    ("haiku", "haiku"),
    ("keras", "keras.keras_adapter"),
    ("transformers.modeling_flax_utils", "transformers"),
)

#: Those whose modules carry their variables.
_CARRIERS: Final = ("flax.nnx", "equinox")


#: Those that have formats of checkpoints of their own.
_SAVERS: Final = ("equinox", "keras")


class Parts(Protocol):
    """A module that carries its variables, without their values."""

    def calling(self, values: Variables, function: Callable[[Any], Any]) -> tuple[Any, Variables]:
        """What a function of the module with these values returns, and the collections that it updated."""
        ...


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


def lifted(found: Any) -> tuple[Parts, Variables] | None:
    """A module that carries its variables, taken apart; None for anything else."""
    return next(filter(None, (adapters.lift(found) for adapters in _loaded(_CARRIERS))), None)


def own_format_of(found: Any, checkpoint: Path) -> OwnFormat | None:
    """How a module reads a checkpoint of its framework's own format; None for any other file or object."""
    return next(filter(None, (adapters.own_format(found, checkpoint) for adapters in _loaded(_SAVERS))), None)


def may_be_lifted() -> bool:
    """Whether the user's code has imported a framework whose modules carry their variables."""
    return any(library in sys.modules for library in _CARRIERS)


def _loaded(libraries: Collection[str] | None = None) -> Iterator[ModuleType]:
    for library, name in _ADAPTERS:
        if library in sys.modules and (libraries is None or library in libraries):
            yield import_module(f"gradscope.frameworks.{name}")
