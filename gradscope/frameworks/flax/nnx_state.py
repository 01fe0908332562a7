"""A module of NNX is differentiated as `nnx.value_and_grad` does: its parameters alone, and the rest keeps its changes.

To JAX it is a pytree like others: `jax.value_and_grad` hands a copy to the function, and drops what that makes of the
copy's running averages and random streams. A module that has parameters alone loses nothing, and is left to JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from gradscope.frameworks.flax.nnx import NNX_OBJECT, collection_of
from gradscope.frameworks.modules.adapter import PARAMS, StatefulCall


def stateful_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, differentiated: int, has_aux: bool
) -> StatefulCall | None:
    """Returns the call of a function of modules that have more than parameters; None for other arguments.

    Args:
        function: The function.
        args: Its arguments by position.
        kwargs: Those by name.
        differentiated: The position of the one that is differentiated.
        has_aux: Whether the function returns a pair of its value and an auxiliary output.
    """
    arguments = {**dict(enumerate(args)), **kwargs}
    states = {at: nnx.split(arg) for at, arg in arguments.items() if _has_module(arg)}
    collections = {at: _collections(state) for at, (_, state) in states.items()}
    if not any(found.keys() - {PARAMS} for found in collections.values()):
        return None
    has_state = len(own := collections.get(differentiated, {})) > 1 and PARAMS in own
    if not has_state:  # left to JAX, as a module of parameters
        states.pop(differentiated, None)
    # Their states in place of the modules: what modules share is in them once.
    given = arguments | {at: state for at, (_, state) in states.items()}
    given |= {differentiated: collections[differentiated]} if has_state else {}

    @functools.wraps(function, updated=())
    def of_states(*positional: Any, **named: Any) -> tuple[Any, tuple[Any, dict[int | str, Any]]]:
        taken = {**dict(enumerate(positional)), **named}
        of_modules = {at: _state(taken[at]) for at in states}
        copies = {at: nnx.merge(graph, of_modules[at], copy=True) for at, (graph, _) in states.items()}  # of this trace
        before = {at: _values(copy) for at, copy in copies.items()}
        taken |= copies
        out = function(*(taken[at] for at in range(len(positional))), **{name: taken[name] for name in named})
        value, aux = out if has_aux else (out, None)
        return value, (aux, {at: _changed(copy, before[at]) for at, copy in copies.items()})

    def restored(out: Any) -> Any:
        (value, (aux, changes)), gradients = out
        for at, changed in changes.items():
            nnx.update(arguments[at], changed)
        return (value, aux) if has_aux else value, gradients[PARAMS] if has_state else gradients

    by_position, by_name = [given[at] for at in range(len(args))], {name: given[name] for name in kwargs}
    return StatefulCall(of_states, by_position, by_name, has_state, restored)


def _has_module(arg: Any) -> bool:
    """Returns whether an argument has a module, or random streams, `nnx.Rngs`, which are none and change as well."""
    leaves = jax.tree_util.tree_leaves(arg, is_leaf=lambda node: isinstance(node, NNX_OBJECT))
    return any(isinstance(leaf, NNX_OBJECT) for leaf in leaves)


def _collections(state: Any) -> dict[str, Any]:
    """Returns the states of variables by collection."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for path, variable in nnx.to_flat_state(state):
        found.setdefault(collection_of(variable), []).append((path, variable))
    return {name: nnx.from_flat_state(each) for name, each in found.items()}


def _state(given: Any) -> Any:
    """Returns the state that is given of a module: as one, or by collection."""
    if isinstance(given, nnx.State):
        return given
    return nnx.from_flat_state([each for state in given.values() for each in nnx.to_flat_state(state)])


def _values(module: Any) -> dict[Any, Any]:
    return {path: variable.get_value() for path, variable in nnx.to_flat_state(nnx.state(module))}


def _changed(module: Any, before: Mapping[Any, Any]) -> Any:
    """Returns the state of the variables that have another value than before."""
    after = nnx.to_flat_state(nnx.state(module))
    kept = [(path, each) for path, each in after if path in before and each.get_value() is not before[path]]
    return nnx.from_flat_state(kept)
