"""Equinox: modules that are pytrees, called on one example at a time.

A batch is mapped over its leading axis, by `jax.vmap` with the axis name that the module's batch norms use; `state` and
`key` are passed to a module that takes them, a key of its own to each example.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import equinox as eqx
import jax
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.equinox.partition import (
    STATE,
    EquinoxParts,
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

#: Parameters that overrule the mode that `eqx.nn.inference_mode` sets in layers.
_MODES: Final = ("inference", "deterministic")

#: The name of the mapped axis where no batch norm asks for another.
_AXIS: Final = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxAdapter:
    """An Equinox module, with the arrays and the state it holds."""

    parts: EquinoxParts
    variables: Variables
    framework: str = "Equinox"
    held: bool = True
    inputs: tuple[InputSpec, ...] = ()

    @property
    def module(self) -> str:
        """Its class."""
        return type(self.parts.net).__name__

    @property
    def signature(self) -> inspect.Signature:
        """That of `__call__`."""
        return method_signature(call_of(type(self.parts.net)))

    @property
    def supplied(self) -> Collection[str]:
        """`state` and `key`, of those that it takes, and modes that it leaves to its layers where none is given."""
        parameters = self.signature.parameters
        modes = {name for name in _MODES if name in parameters and parameters[name].default is None}
        return (parameters.keys() & {STATE, _KEY}) | modes

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - it is held
        """The arrays of the tree, what its state holds, and the key that examples get theirs from.

        Raises:
            UsageError: It takes a state, and none came with it.
        """
        if STATE in self.supplied and self.parts.state is None:
            raise UsageError(
                f"{self.module} takes a state, and the target names the module alone",
                hint="name the pair that eqx.nn.make_with_state(...)(...) returns, or the class",
            )
        return {**self.variables, RNGS: {_KEY: key}} if _KEY in self.supplied else self.variables

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """What the module returns for each example, and its updated state."""
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

        (outputs, state), _ = self.parts.calling(variables, batched)
        return outputs, {} if state is None else {STATE: self.parts.state_values(state)}


def adapt(found: Any, *, train: bool) -> EquinoxAdapter | None:
    """The adapter of an Equinox module, or of a pair of one and its state; None for anything else."""
    taken = split(eqx.nn.inference_mode(found, value=not train)) if lift(found) is not None else None
    if taken is None or call_of(type(taken[0].net)) is None:
        return None
    return EquinoxAdapter(parts=taken[0], variables=taken[1])


def lift(found: Any) -> tuple[EquinoxParts, Variables] | None:
    """The parts of an Equinox module and its variables by collection; None for anything else."""
    return split(found)


def own_format(found: Any, checkpoint: Path) -> EquinoxFormat | None:
    """How an Equinox module, or a pair of one and its state, reads an `.eqx` file; None for anything else."""
    if checkpoint.suffix != SUFFIX or lift(found) is None:
        return None
    return EquinoxFormat(module=found, checkpoint=checkpoint)


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """A class of Equinox modules with its state, or a function that takes a `key`, with one of the seed."""
    is_module = isinstance(found, type) and issubclass(found, eqx.Module)
    build = eqx.nn.make_with_state(found) if is_module else found
    if _KEY in parameters_to_build(found):
        return functools.partial(build, key=jax.random.key(seed))
    return build if is_module else None


def _axis_name(net: Any) -> Any:
    """The name of the axis that batch norms average over."""
    norms = jax.tree_util.tree_leaves(net, is_leaf=lambda value: isinstance(value, eqx.nn.BatchNorm))
    return next((norm.axis_name for norm in norms if isinstance(norm, eqx.nn.BatchNorm)), _AXIS)
