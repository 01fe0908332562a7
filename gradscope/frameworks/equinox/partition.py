"""The partition of an Equinox module separates its arrays, by collection and attribute path, from everything else.

Parameters are the inexact arrays of the tree. Other arrays are the collection `buffers`. The values of an
`eqx.nn.State` are the collection `state`, by the attribute path of the index under which they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import equinox as eqx
import jax

from gradscope.frameworks.equinox.called_modules import opening_scopes
from gradscope.frameworks.equinox.scoped_modules import named_tree
from gradscope.frameworks.modules.adapter import PARAMS, Variables
from gradscope.frameworks.modules.module_scopes import named_arguments
from gradscope.frameworks.modules.outputs import parted
from gradscope.frameworks.modules.tree_names import path_components, tree_names

BUFFERS: Final = "buffers"
STATE: Final = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxStructure:
    """An `EquinoxStructure` is a module, with its state if it has one, with shapes in place of arrays.

    Attributes:
        net: The module.
        state: Its state; None without one.
    """

    net: Any
    state: Any

    @property
    def module(self) -> Any:
        """The module, or the pair of it and its state, with shapes in place of arrays."""
        return self.net if self.state is None else (self.net, self.state)

    def calling(self, values: Variables, function: Callable[[Any], Any]) -> tuple[Any, Variables]:
        """Returns the result of a function of the module with these values, and no updated collections.

        A copy of the module opens the scopes. A function that fails with it is called with the module itself, whose
        class it may need: `eqx.combine` joins trees of one structure.

        Args:
            values: The module's variables by collection.
            function: Takes the module, or the pair of it and its state; each inner module opens its scope when called.

        Returns:
            The result with None in the place of the module's state, and that state as a collection: an Equinox module
            is immutable.
        """
        net = _filled(self.net, {**values[PARAMS], **values.get(BUFFERS, {})})
        with suppress(TypeError, ValueError):  # what is wrong with the function is so with the module itself, too
            return self._separated(function(self._with_state(named_tree(net), values)))
        with named_arguments([net], tree_names(net)), opening_scopes():
            return self._separated(function(self._with_state(net, values)))

    def _separated(self, returned: Any) -> tuple[Any, Variables]:
        """Returns what a function returned with None in the place of the module's state, and that state's values."""
        if self.state is None:
            return returned, {}
        remaining, state = parted(returned, jax.tree_util.tree_structure(self.state))
        return remaining, {} if state is None else {STATE: self.state_values(state)}

    def _with_state(self, net: Any, values: Variables) -> Any:
        return net if self.state is None else (net, self._filled_state(values[STATE]))

    @property
    def has_its_state(self) -> bool:
        """Whether the state, if there is one, is the module's own and of no more than it."""
        if self.state is None:
            return True
        with suppress(KeyError):  # `State.get` raises it for an index that the state does not have
            return len(self.state_values(self.state)) == len(jax.tree_util.tree_leaves(self.state))
        return False

    def state_values(self, state: Any) -> dict[str, Any]:
        """Returns the values of a state, by path."""
        values_by_path = {path: state.get(index) for path, index in self._indices()}
        return by_path(values_by_path)

    def _indices(self) -> list[tuple[str, Any]]:
        leaves = jax.tree_util.tree_leaves_with_path(self.net, is_leaf=_is_index)
        return [("/".join(path_components(path)), leaf) for path, leaf in leaves if _is_index(leaf)]

    def _filled_state(self, values: Mapping[str, Any]) -> Any:
        named = {id(shape): path for path, shape in self.state_values(self.state).items()}
        return jax.tree_util.tree_map(lambda shape: values[named[id(shape)]], self.state)


def split(found: Any) -> tuple[EquinoxStructure, Variables] | None:
    """Returns the structure and the variables of a module, or of a pair of a module and its state; None for others.

    A list or dictionary of modules counts as one where it has to be parted: a module of arrays alone is a pytree that
    needs no adapter. The state of another module, or of one of which this is a part, is no state of this one.
    """
    is_pair = isinstance(found, tuple) and len(found) == 2 and _is_state(found[1])
    net, state = found if is_pair else (found, None)
    if not (isinstance(net, eqx.Module) or _holds_modules(net)):
        return None
    structure = EquinoxStructure(net=_shapes(net), state=None if state is None else _shapes(state))
    if not structure.has_its_state:
        return None
    arrays = {path: leaf for path, leaf in by_path(net).items() if eqx.is_array(leaf)}
    own = {
        PARAMS: {path: leaf for path, leaf in arrays.items() if eqx.is_inexact_array(leaf)},
        BUFFERS: {path: leaf for path, leaf in arrays.items() if not eqx.is_inexact_array(leaf)},
        STATE: {} if state is None else structure.state_values(state),
    }
    return structure, {name: collection for name, collection in own.items() if collection or name != BUFFERS}


def _holds_modules(found: Any) -> bool:
    """Returns whether modules are all that a list, tuple or dictionary has, and have more than arrays."""
    if not isinstance(found, list | tuple | dict):
        return False
    held = jax.tree_util.tree_leaves(found, is_leaf=lambda each: isinstance(each, eqx.Module))
    return all(isinstance(each, eqx.Module) for each in held) and not all(
        map(eqx.is_array_like, jax.tree_util.tree_leaves(found))
    )


def _shapes(tree: Any) -> Any:
    """Returns the tree with a shape in place of each array."""
    # Each shape is an object of its own even where arrays are shared, because it identifies its position.
    return jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf, tree
    )


def _filled(tree: Any, arrays: Mapping[str, Any]) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    filled = [arrays.get(path, leaf) for path, leaf in zip(tree_names(tree), leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, filled)


def by_path(tree: Any) -> dict[str, Any]:
    """Returns a tree's leaves by path, in order."""
    return dict(zip(tree_names(tree), jax.tree_util.tree_leaves(tree), strict=True))


def _is_index(value: Any) -> bool:
    return isinstance(value, eqx.nn.StateIndex)


def _is_state(value: Any) -> bool:
    return isinstance(value, eqx.nn.State)
