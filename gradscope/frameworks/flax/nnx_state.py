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

from gradscope.frameworks.flax.nnx import collection_of
from gradscope.frameworks.modules.adapter import PARAMS
from gradscope.frameworks.modules.calling import StatefulCall


def stateful_call(
    function: Callable[..., Any], args: Sequence[Any], *, differentiated: int, has_aux: bool
) -> StatefulCall | None:
    """Returns the call of a function of modules that have more than parameters; None for other arguments.

    Args:
        function: The function.
        args: Its arguments by position.
        differentiated: The position of the one that is differentiated.
        has_aux: Whether the function returns a pair of its value and an auxiliary output.
    """
    states = {at: nnx.split(arg) for at, arg in enumerate(args) if _has_module(arg)}
    collections = {at: _collections(state) for at, (_, state) in states.items()}
    if not any(found.keys() - {PARAMS} for found in collections.values()):
        return None
    has_state = bool(collections.get(differentiated, {}).keys() - {PARAMS})
    given = [collections[at] if has_state and at == differentiated else arg for at, arg in enumerate(args)]

    @functools.wraps(function, updated=())
    def of_collections(*taken: Any, **kwargs: Any) -> tuple[Any, tuple[Any, dict[int, Any]]]:
        copies = {
            at: _copy(graph, _joined(taken[at]) if at == differentiated and has_state else nnx.state(taken[at]))
            for at, (graph, _) in states.items()
        }
        before = {at: _values(copy) for at, copy in copies.items()}
        out = function(*(copies.get(at, arg) for at, arg in enumerate(taken)), **kwargs)
        value, aux = out if has_aux else (out, None)
        return value, (aux, {at: _changed(copy, before[at]) for at, copy in copies.items()})

    def restored(out: Any) -> Any:
        (value, (aux, changes)), gradients = out
        for at, changed in changes.items():
            nnx.update(args[at], changed)
        return (value, aux) if has_aux else value, gradients[PARAMS] if has_state else gradients

    return StatefulCall(of_collections, given, has_state, restored)


def _has_module(arg: Any) -> bool:
    leaves = jax.tree_util.tree_leaves(arg, is_leaf=lambda node: isinstance(node, nnx.Module))
    return any(isinstance(leaf, nnx.Module) for leaf in leaves)


def _collections(state: Any) -> dict[str, Any]:
    """Returns the states of variables by collection."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for path, variable in nnx.to_flat_state(state):
        found.setdefault(collection_of(variable), []).append((path, variable))
    return {name: nnx.from_flat_state(each) for name, each in found.items()}


def _copy(graph: Any, state: Any) -> Any:
    return nnx.merge(graph, state, copy=True)  # of this trace: variables of the one around it cannot be changed


def _joined(collections: Mapping[str, Any]) -> Any:
    return nnx.from_flat_state([each for state in collections.values() for each in nnx.to_flat_state(state)])


def _values(module: Any) -> dict[Any, Any]:
    return {path: variable.get_value() for path, variable in nnx.to_flat_state(nnx.state(module))}


def _changed(module: Any, before: Mapping[Any, Any]) -> Any:
    """Returns the state of the variables that have another value than before."""
    after = nnx.to_flat_state(nnx.state(module))
    kept = [(path, each) for path, each in after if path in before and each.get_value() is not before[path]]
    return nnx.from_flat_state(kept)
