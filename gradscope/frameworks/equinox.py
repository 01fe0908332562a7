"""Equinox: modules that are pytrees, called on one example at a time.

A batch is mapped over its leading axis, by `jax.vmap` with the axis name that the module's batch norms use; `state` and
`key` are passed to a module that takes them, a key of its own to each example. Parameters are the inexact arrays of the
tree, by attribute path; other arrays are the collection `buffers`, what `eqx.nn.State` holds is the collection `state`,
and everything else stays with the tree.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import equinox as eqx
import jax
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.adapter import PARAMS, RNGS, Variables
from gradscope.frameworks.calling import CallShape, method_signature, parameters_to_build
from gradscope.frameworks.equinoxnames import call_of, named_tree
from gradscope.frameworks.inputspec import InputSpec

_BUFFERS: Final = "buffers"
_STATE: Final = "state"
_KEY: Final = "key"

#: The name of the mapped axis where no batch norm asks for another.
_AXIS: Final = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxAdapter:
    """An Equinox module, and its state where it has one."""

    net: Any
    state: Any
    framework: str = "Equinox"
    held: bool = True
    inputs: tuple[InputSpec, ...] = ()

    @property
    def module(self) -> str:
        """Its class."""
        return type(self.net).__name__

    @property
    def signature(self) -> inspect.Signature:
        """That of `__call__`."""
        return method_signature(call_of(type(self.net)))

    @property
    def supplied(self) -> Collection[str]:
        """`state` and `key`, of those that it takes."""
        return self.signature.parameters.keys() & {_STATE, _KEY}

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - it is held
        """The arrays of the tree, what its state holds, and the key that examples get theirs from.

        Raises:
            UsageError: It takes a state, and none came with it.
        """
        if _STATE in self.supplied and self.state is None:
            raise UsageError(
                f"{self.module} takes a state, and the target names the module alone",
                hint="name the pair that eqx.nn.make_with_state(...)(...) returns, or the class",
            )
        own = {
            PARAMS: _arrays(self.net, eqx.is_inexact_array),
            _BUFFERS: _arrays(eqx.filter(self.net, eqx.is_inexact_array, inverse=True), eqx.is_array),
            _STATE: {path: self.state.get(index) for path, index in _indices(self.net)} if self.state else {},
            RNGS: {_KEY: key} if _KEY in self.supplied else {},
        }
        return {name: collection for name, collection in own.items() if collection or name == PARAMS}

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """What the module returns for each example, and its updated state."""
        net = named_tree(_with_arrays(self.net, {**variables[PARAMS], **variables.get(_BUFFERS, {})}))
        extra: dict[str, Any] = {_STATE: self._state_of(variables)} if _STATE in self.supplied else {}

        def one(arguments: tuple[Any, ...], named: dict[str, Any], keys: dict[str, Array]) -> tuple[Any, Any]:
            returned = net(*arguments, **named, **call.flags, **keys, **extra)
            return returned if extra else (returned, None)

        arguments, named = call.arguments(inputs)
        named = {name: value for name, value in named.items() if name not in call.flags}
        size = jax.tree_util.tree_leaves((arguments, named))[0].shape[0]
        keys = {name: jax.random.split(key, size) for name, key in variables.get(RNGS, {}).items()}
        mapped = jax.vmap(one, axis_name=_axis_name(self.net), out_axes=(0, None))
        outputs, state = mapped(arguments, named, keys)
        return outputs, {_STATE: {path: state.get(index) for path, index in _indices(self.net)}} if extra else {}

    def _state_of(self, variables: Variables) -> Any:
        leaves, tree = jax.tree_util.tree_flatten(self.state)
        state = jax.tree_util.tree_unflatten(tree, leaves)  # a state that is set invalidates the one it was set on
        for path, index in _indices(self.net):
            state = state.set(index, variables[_STATE][path])
        return state


def adapt(found: Any, *, train: bool) -> EquinoxAdapter | None:
    """The adapter of an Equinox module, or of a pair of one and its state; None for anything else."""
    net, state = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(net, eqx.Module) or call_of(type(net)) is None or not isinstance(state, eqx.nn.State | None):
        return None
    return EquinoxAdapter(net=eqx.nn.inference_mode(net, value=not train), state=state)


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """A class of Equinox modules with its state, or a function that takes a `key`, with one of the seed."""
    is_module = isinstance(found, type) and issubclass(found, eqx.Module)
    build = eqx.nn.make_with_state(found) if is_module else found
    if _KEY in parameters_to_build(found):
        return functools.partial(build, key=jax.random.key(seed))
    return build if is_module else None


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _arrays(tree: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_path(path): leaf for path, leaf in leaves if wanted(leaf)}


def _with_arrays(tree: Any, arrays: Mapping[str, Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: arrays.get(_path(path), leaf), tree)


def _indices(net: Any) -> list[tuple[str, Any]]:
    """Where a module's state is kept: attribute paths, and the indices there."""
    leaves = jax.tree_util.tree_leaves_with_path(net, is_leaf=_is_index)
    return [(_path(path), leaf) for path, leaf in leaves if _is_index(leaf)]


def _is_index(value: Any) -> bool:
    return isinstance(value, eqx.nn.StateIndex)


def _axis_name(net: Any) -> Any:
    """The name of the axis that batch norms average over."""
    norms = jax.tree_util.tree_leaves(net, is_leaf=lambda value: isinstance(value, eqx.nn.BatchNorm))
    return next((norm.axis_name for norm in norms if isinstance(norm, eqx.nn.BatchNorm)), _AXIS)
