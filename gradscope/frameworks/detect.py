"""Detection finds the framework of an object, among those that the user's code has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from gradscope.frameworks.modules.adapter import Adapter, OwnFormat, StatefulCall, Variables
from gradscope.frameworks.modules.module_scopes import named_arguments

#: The foreign module that defines a framework's modules, and our module that adapts them.
_ADAPTERS: Final = (
    ("flax.linen", "flax.linen"),
    ("flax.nnx", "flax.nnx"),
    ("equinox", "equinox.equinox_adapter"),
    ("haiku", "haiku"),
    ("keras", "keras.keras_adapter"),
    ("transformers.modeling_flax_utils", "flax.transformers"),
)

#: The frameworks whose modules carry their variables.
_CARRIERS: Final = ("flax.nnx", "equinox")

#: Those whose functions return parameters and state as a pair of plain dictionaries.
_PAIRING: Final = ("haiku",)

#: Those whose modules open no scopes or others than their names, and may be built by any function from a pytree.
_CALLED: Final = ("flax.linen", "flax.nnx", "equinox")

#: Those whose modules are pytrees with leaves of any kind, such as functions.
_OF_ANY_LEAVES: Final = ("equinox",)

#: The frameworks that have their own formats of checkpoints.
_SAVERS: Final = ("equinox", "keras")


#: What to do with modules of frameworks that have no adapter, by the package of their class.
_WITHOUT_ADAPTER: Final = {
    "penzai": "a Penzai model holds its parameters as variables: in init return their values, {each.label: each.value "
    "for each in pz.unbind_params(model)[1]}, and in loss bind them again, with pz.bind_variables"
}


class ModuleStructure(Protocol):
    """A `ModuleStructure` is a module that carries its variables, without their values."""

    @property
    def module(self) -> Any:
        """The module, or what holds it with its state, with shapes in place of arrays; None without an own format."""
        ...

    def calling(self, values: Variables, function: Callable[[Any], Any]) -> tuple[Any, Variables]:
        """Returns the result of a function of the module with these values, and the collections that it updated."""
        ...


def adapter_of(found: Any, *, train: bool) -> Adapter | None:
    """Returns the adapter of a framework's module; None for another object.

    Args:
        found: Any object.
        train: Whether the module runs in training mode.
    """
    return next(filter(None, (adapters.adapt(found, train=train) for adapters in _loaded())), None)


def builder_of(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """Returns a function that builds a module of a framework's class, or calls a function with random keys.

    Args:
        found: Any object.
        seed: Seeds the random numbers with which the module is built.

    Returns:
        The function; None for any other object.
    """
    return next(filter(None, (adapters.builder(found, seed=seed) for adapters in _loaded())), None)


def split_variables(found: Any) -> tuple[ModuleStructure, Variables] | None:
    """Returns the structure and the variables of a module that carries its variables; None for another object."""
    return next(filter(None, (adapters.split_variables(found) for adapters in _loaded(_CARRIERS))), None)


@contextmanager
def noting_pairs(noted: set[Any]) -> Generator[None]:
    """Notes the pairs of parameters and state that functions of frameworks make, which nothing else tells from others.

    Args:
        noted: Receives what `split_pair` knows them by.
    """
    with ExitStack() as stack:
        for adapters in _loaded(_PAIRING):
            stack.enter_context(adapters.noting_pairs(noted))
        yield


def split_pair(found: Any, noted: Collection[Any]) -> tuple[ModuleStructure, Variables] | None:
    """Returns the structure and the variables of a pair of parameters and state; None for another object."""
    return next(filter(None, (adapters.split_pair(found, noted) for adapters in _loaded(_PAIRING))), None)


def leaf_without_values(tree: Any) -> str | None:
    """Returns the path of the first leaf of a module in a pytree that is no array; None where there is none."""
    return next(filter(None, (adapters.leaf_without_values(tree) for adapters in _loaded(_OF_ANY_LEAVES))), None)


def own_format_of(found: Any, checkpoint: Path) -> OwnFormat | None:
    """Returns the reader of a checkpoint in the module's own format; None for another file or object."""
    return next(filter(None, (adapters.own_format(found, checkpoint) for adapters in _loaded(_SAVERS))), None)


def stateful_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, differentiated: int, has_aux: bool
) -> StatefulCall | None:
    """Returns the call of a function of NNX modules with state that carries this; None for other arguments.

    Args:
        function: The function.
        args: Its arguments by position.
        kwargs: Those by name.
        differentiated: The position of the one that is differentiated.
        has_aux: Whether the function returns a pair of its value and an auxiliary output.
    """
    if "flax.nnx" not in sys.modules:
        return None
    of_nnx = import_module("gradscope.frameworks.flax.nnx_state")
    return of_nnx.stateful_call(function, args, kwargs, differentiated=differentiated, has_aux=has_aux)


@contextmanager
def naming_calls(args: Sequence[Any], names: Sequence[str]) -> Generator[None]:
    """Makes the modules of frameworks open scopes that are called while a function is traced.

    Args:
        args: The function's arguments, as they are traced.
        names: The names of their leaves.
    """
    with ExitStack() as stack:
        stack.enter_context(named_arguments(args, names))
        for adapters in _loaded(_CALLED):
            stack.enter_context(adapters.naming_calls())
        yield


def hint_without_adapter(found: Any) -> str | None:
    """Returns what to do with an object of a framework that has no adapter; None for any other object."""
    packages = (each.__module__.partition(".")[0] for each in type(found).__mro__)
    return next((_WITHOUT_ADAPTER[package] for package in packages if package in _WITHOUT_ADAPTER), None)


def may_return_pairs() -> bool:
    """Returns whether the user's code has imported a framework that returns parameters and state as a pair."""
    return any(library in sys.modules for library in _PAIRING)


def may_carry_variables() -> bool:
    """Returns whether the user's code has imported a framework whose modules carry their variables."""
    return any(library in sys.modules for library in _CARRIERS)


def _loaded(libraries: Collection[str] | None = None) -> Iterator[ModuleType]:
    for library, name in _ADAPTERS:
        if library in sys.modules and (libraries is None or library in libraries):
            yield import_module(f"gradscope.frameworks.{name}")
