"""Adapters are the interface that every framework implements; own formats are that of files that need its module.

A module's variables are one dictionary of collections, as in Flax: `params` are its parameters, the others are its
state. Random keys that the module uses are a collection as well, `rngs`, so that a dump records them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from jax import Array

from gradscope.frameworks.modules.calling import CallShape, method_signature
from gradscope.frameworks.modules.input_spec import InputSpec

#: A module's variables by collection.
Variables: TypeAlias = Mapping[str, Any]

#: The collections that gradscope treats specially.
PARAMS: Final = "params"
RNGS: Final = "rngs"


class Adapter(Protocol):
    """An `Adapter` is a framework's module, ready to run."""

    @property
    def framework(self) -> str:
        """The framework's name."""
        ...

    @property
    def module(self) -> str:
        """The module's name in messages."""
        ...

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of its call, without `self`."""
        ...

    @property
    def supplied(self) -> Collection[str]:
        """The parameters of its call that the adapter passes itself."""
        ...

    @property
    def initialised(self) -> bool:
        """True where the variables exist already, so that `init` only returns them."""
        ...

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs that the module itself determines; empty where it determines none."""
        ...

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:
        """Returns the module's variables.

        Args:
            key: Seeds random numbers.
            call: How the module is called.
            inputs: Its inputs by name.
        """
        ...

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns the module's outputs, and the collections that it updated.

        Args:
            variables: The module's variables, as `init` returned them.
            call: How the module is called.
            inputs: Its inputs by name.
        """
        ...


class Described(Protocol):
    """A `Described` tensor has a shape and a dtype, and has not been read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        ...

    @property
    def dtype(self) -> Any:
        """The tensor's dtype, or the dtype's name."""
        ...


class OwnFormat(Protocol):
    """An `OwnFormat` is a module and a checkpoint of its framework's own format."""

    @property
    def built(self) -> bool:
        """True where the module has created its variables."""
        ...

    @property
    def exact(self) -> bool:
        """True where numbers must have the same width."""
        ...

    def layouts(self) -> tuple[Mapping[str, Described], Mapping[str, Described] | None]:
        """Returns the tensors by path that a file of this module has, in the file's order, and those of this file.

        Returns:
            Both; None for the latter where the file has an order and no names.
        """
        ...

    @property
    def leads(self) -> bool:
        """True where a file may have other tensors beside those of the module."""
        ...

    @property
    def without_state(self) -> int:
        """The number of tensors of `layouts` in front of a module's state; 0 where it has names."""
        ...

    def hint(self, saved: int) -> str | None:
        """Returns what to do about a file that does not fit; None where nothing is known.

        Args:
            saved: The number of tensors in the file.
        """
        ...

    def restore(self, behind: int = 0) -> Any:
        """Returns the module with the file's values, perhaps another object.

        Args:
            behind: The number of tensors in front of the module's, where a file may have others.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledObject:
    """A `CalledObject` is the part of an adapter that is common to modules which are objects with a `__call__`.

    Attributes:
        net: The module.
    """

    net: Any

    @property
    def module(self) -> str:
        """The name of its class."""
        return type(self.net).__name__

    @property
    def signature(self) -> inspect.Signature:
        """The signature of `__call__`."""
        return method_signature(type(self.net).__call__)


class StatefulCall(NamedTuple):
    """A `StatefulCall` calls a function with the states of modules in their place, and returns what it changes of them.

    Attributes:
        function: Takes the states of modules in their place, that of the one that is differentiated by collection;
            returns its value, and its auxiliary output with the changes of each module.
        args: The arguments by position.
        kwargs: Those by name.
        has_state: Whether the differentiated argument is such collections, of which `params` alone is differentiated.
        restored: Makes of the function's output and its gradients those of the original one, and changes the modules.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    has_state: bool
    restored: Callable[[Any], Any]
