"""Adapters: what every framework can be asked for.

A module's variables are one dictionary of collections, as Flax has it: `params` are its parameters, the others its
state. Random keys that the module consumes are a collection as well, `rngs`, so that a dump says which they were.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from jax import Array

from gradscope.frameworks.modules.calling import CallShape, method_signature
from gradscope.frameworks.modules.input_spec import InputSpec

#: A module's variables by collection.
Variables: TypeAlias = Mapping[str, Any]

#: The collections that have a meaning here.
PARAMS: Final = "params"
RNGS: Final = "rngs"


class Adapter(Protocol):
    """A framework's module, ready to be run."""

    @property
    def framework(self) -> str:
        """The framework's name."""
        ...

    @property
    def module(self) -> str:
        """What messages call the module."""
        ...

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of its call, without `self`."""
        ...

    @property
    def supplied(self) -> Collection[str]:
        """Parameters of its call that the adapter fills itself."""
        ...

    @property
    def held(self) -> bool:
        """Whether its variables exist already, so that `init` only hands them out."""
        ...

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it says itself about its inputs; empty where it says nothing."""
        ...

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:
        """The module's variables.

        Args:
            key: Seeds what is drawn.
            call: How the module is called.
            inputs: Its inputs by name.
        """
        ...

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """What the module returns, and the collections that it updated.

        Args:
            variables: The module's variables, as `init` gave them.
            call: How the module is called.
            inputs: Its inputs by name.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledObject:
    """What an adapter says of a module that is an object, called as one.

    Attributes:
        net: The module.
    """

    net: Any

    @property
    def module(self) -> str:
        """Its class."""
        return type(self.net).__name__

    @property
    def signature(self) -> inspect.Signature:
        """That of `__call__`."""
        return method_signature(type(self.net).__call__)
