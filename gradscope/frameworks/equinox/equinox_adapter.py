"""The adapter of Equinox calls modules, which are pytrees, on one example at a time.

A batch is mapped over its leading axis, by `jax.vmap` with the axis name of the module's batch norms. `state` and `key`
are passed to a module that takes them, a separate key to each example.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import equinox as eqx
import jax
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.equinox.called_modules import opening_scopes
from gradscope.frameworks.equinox.partition import (
    STATE,
    EquinoxStructure,
    split,
)
from gradscope.frameworks.equinox.saved_leaves import (
    SUFFIX,
    EquinoxFormat,
)
from gradscope.frameworks.equinox.scoped_modules import call_of
from gradscope.frameworks.modules.adapter import RNGS, Variables
from gradscope.frameworks.modules.calling import CallShape, method_signature, parameters_to_build
from gradscope.frameworks.modules.input_spec import InputSpec

_KEY: Final = "key"

#: Parameters that override the mode that `eqx.nn.inference_mode` sets in layers.
_MODES: Final = ("inference", "deterministic")

#: The name of the mapped axis where no batch norm has another.
_AXIS: Final = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxAdapter:
    """An `EquinoxAdapter` adapts an Equinox module, with its arrays and its state."""

    structure: EquinoxStructure
    variables: Variables
    framework: str = "Equinox"
    initialised: bool = True
    inputs: tuple[InputSpec, ...] = ()

    @property
    def module(self) -> str:
        """The name of its class."""
        return type(self.structure.net).__name__

    @property
    def signature(self) -> inspect.Signature:
        """The signature of `__call__`."""
        return method_signature(call_of(type(self.structure.net)))

    @property
    def supplied(self) -> Collection[str]:
        """`state` and `key`, where the module takes them, and modes whose default leaves them to the layers."""
        parameters = self.signature.parameters
        modes = {name for name in _MODES if name in parameters and parameters[name].default is None}
        return (parameters.keys() & {STATE, _KEY}) | modes

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - it exists already
        """Returns the arrays of the tree, the values of its state, and the key that is split over the examples.

        Raises:
            UsageError: The module takes a state, and the target has none.
        """
        if STATE in self.supplied and self.structure.state is None:
            raise UsageError(
                f"{self.module} takes a state, and the target names only the module",
                hint="name the pair that eqx.nn.make_with_state(...)(...) returns, or the class",
            )
        return {**self.variables, RNGS: {_KEY: key}} if _KEY in self.supplied else self.variables

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns the module's outputs for each example, and its updated state."""
        arguments, keyword = call.arguments(inputs)
        named = {name: value for name, value in keyword.items() if name not in call.flags}
        size = jax.tree_util.tree_leaves((arguments, named))[0].shape[0]
        keys = {name: jax.random.split(key, size) for name, key in variables.get(RNGS, {}).items()}

        def batched(restored: Any) -> tuple[Any, Any]:
            net, state = restored if isinstance(restored, tuple) else (restored, None)
            extra = {STATE: state} if STATE in self.supplied else {}

            def one(arguments: tuple[Any, ...], named: dict[str, Any], keys: dict[str, Array]) -> tuple[Any, Any]:
                returned = net(*arguments, **named, **call.flags, **keys, **extra)
                return returned if extra else (returned, None)

            return jax.vmap(one, axis_name=_axis_name(net), out_axes=(0, None))(arguments, named, keys)

        (outputs, _), updated = self.structure.calling(variables, batched)
        return outputs, updated


def adapt(found: Any, *, train: bool) -> EquinoxAdapter | None:
    """Returns the adapter of an Equinox module, or of a pair of a module and its state; None for another object."""
    taken = split(eqx.nn.inference_mode(found, value=not train)) if split_variables(found) is not None else None
    if taken is None or call_of(type(taken[0].net)) is None:
        return None
    return EquinoxAdapter(structure=taken[0], variables=taken[1])


def split_variables(found: Any) -> tuple[EquinoxStructure, Variables] | None:
    """Returns the structure of an Equinox module and its variables by collection; None for another object."""
    return split(found)


def leaf_without_values(tree: Any) -> str | None:
    """Returns the path of the first leaf of a module in a pytree that is no array; None where there is none."""
    for path, module in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda each: isinstance(each, eqx.Module)):
        if isinstance(module, eqx.Module):
            for inner, leaf in jax.tree_util.tree_leaves_with_path(module):
                if not eqx.is_array_like(leaf):
                    return jax.tree_util.keystr((*path, *inner))
    return None


def own_format(found: Any, checkpoint: Path) -> EquinoxFormat | None:
    """Returns the reader of an `.eqx` file for an Equinox module, or for a pair of one and its state; else None."""
    if checkpoint.suffix != SUFFIX or split_variables(found) is None:
        return None
    return EquinoxFormat(module=found, checkpoint=checkpoint)


def naming_calls() -> AbstractContextManager[None]:
    """Makes the modules whose arrays are arguments of the function being traced open their scopes."""
    return opening_scopes()


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """Returns a class of modules with its state, or a function of a `key` with the seed's key; None for others."""
    is_module = isinstance(found, type) and issubclass(found, eqx.Module)
    build = eqx.nn.make_with_state(found) if is_module else found
    if _KEY in parameters_to_build(found):
        return functools.partial(build, key=jax.random.key(seed))
    return build if is_module else None


def _axis_name(net: Any) -> Any:
    """Returns the name of the axis over which batch norms average."""
    norms = jax.tree_util.tree_leaves(net, is_leaf=lambda value: isinstance(value, eqx.nn.BatchNorm))
    return next((norm.axis_name for norm in norms if isinstance(norm, eqx.nn.BatchNorm)), _AXIS)
