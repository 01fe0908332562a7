"""Functions of modules are a file's own `init`, which returns an NNX or Equinox module, and `loss`, which takes it.

So are those of the pair of parameters and state that Haiku makes.

gradscope passes the module's arrays between the two. For each call of `loss` the module is built again from them, with
names for its inner modules. Changes that `loss` makes to an NNX module are returned with its auxiliary outputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from gradscope.frameworks.detect import (
    ModuleStructure,
    may_carry_variables,
    noting_pairs,
    split_pair,
    split_variables,
)
from gradscope.frameworks.modules.outputs import updated_leaves


class FunctionsOfModules:
    """`FunctionsOfModules` wrap `init` and `loss` of a model so that a pytree of arrays passes between them.

    Args:
        init: `init(key)`, the user's own.
        loss: `loss(variables, batch)`, the user's own.

    Attributes:
        loss: `loss(variables, batch)`; it returns what the user's own does, with the collections that it updated.
    """

    def __init__(self, init: Callable[[Any], Any], loss: Callable[[Any, Any], Any]) -> None:
        self._init = init
        self._loss = loss
        self._structure: ModuleStructure | None = None
        # Kept from call to call: a function that `jit` has compiled runs once.
        self._pairs: set[Any] = set()

        @functools.wraps(loss, updated=())  # JAX's messages about what is traced name the user's function
        def of_arrays(variables: Any, batch: Any) -> Any:
            return self._of_arrays(variables, batch)

        self.loss = of_arrays

    def init(self, key: Any) -> Any:
        """Returns what the user's `init` returns, or the arrays of the module that it returns."""
        with noting_pairs(self._pairs):
            made = self._init(key)
        arrays = self.arrays_of(made)
        if (tracer := _tracer_behind(made)) is not None:
            # What `loss` takes would have it for ever: this `init` is run, and not traced.
            raise jax.errors.TracerArrayConversionError(tracer)
        return arrays

    def arrays_of(self, made: Any) -> Any:
        """Returns the arrays of a module that `loss` takes from now on; anything else than a module as it is."""
        separated = split_variables(made) or split_pair(made, self._pairs)
        if separated is None:
            return made
        self._structure, variables = separated
        return variables

    @property
    def module(self) -> Any:
        """The module that `init` returned, with shapes in place of arrays; None without an own format."""
        return None if self._structure is None else self._structure.module

    def _of_arrays(self, variables: Any, batch: Any) -> Any:
        if self._structure is None:
            return self._loss(variables, batch)
        returned, collections = self._structure.calling(variables, lambda module: self._loss(module, batch))
        updated = updated_leaves(collections, variables)
        return returned if not updated else _with_updates(returned, updated)


def _tracer_behind(made: Any) -> Tracer[Any] | None:
    """Returns a traced value in a field of modules that is static to JAX; None without one."""
    leaves = {id(leaf) for leaf in jax.tree_util.tree_leaves(made)}
    seen: set[int] = set()
    inside = [made]
    while inside:
        node = inside.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Tracer) and id(node) not in leaves:
            return node
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            inside += [getattr(node, field.name, None) for field in dataclasses.fields(node)]
        elif isinstance(node, Mapping):
            inside += node.values()
        elif isinstance(node, list | tuple):
            inside += node
    return None


def _with_updates(returned: Any, updated: Mapping[str, Any]) -> Any:
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return returned, updated
    value, aux = returned
    return value, {**updated, **(aux if isinstance(aux, Mapping) else {"aux": aux})}


def position_of_state(args: Sequence[Any], module: int) -> int | None:
    """Returns the position of the only argument that is the state of a module, as Equinox keeps it; None without one.

    Args:
        args: The arguments of a call.
        module: The position of the one that may be a module.
    """
    if not may_carry_variables():
        return None
    others = (each for each in range(len(args)) if each != module and args[each] is not None)
    found = [each for each in others if split_variables((args[module], args[each])) is not None]
    return found[0] if len(found) == 1 else None
