"""The leaves of what a function is called with have families and names: its parameters, its state, its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.frameworks.modules.tree_names import tree_names, tree_paths
from gradscope.naming.paths import unique_names
from gradscope.tracing.dataflow.reachability import Reach

#: The name of the parameters among a model's variables.
_PARAMS: Final = "params"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A `Leaf` is one array among the loss's arguments or auxiliary outputs.

    Attributes:
        family: `param`, `state`, `input` or `aux`.
        name: Its path inside its collection.
        shape: Its shape.
        dtype: Its JAX dtype.
        differentiated: Whether the loss is differentiated with respect to it.
        forward_only: Whether it is not differentiated because reverse mode cannot get from the loss to it.
    """

    family: str
    name: str
    shape: tuple[int, ...]
    dtype: Any
    differentiated: bool = False
    forward_only: bool = False


def as_reached(leaf: Leaf, reach: Reach) -> Leaf:
    """Returns the leaf, not differentiated where that would fail; for parameters the failure is reported instead."""
    barred = leaf.family == naming.INPUT and leaf.differentiated and reach is Reach.BARRED
    return replace(leaf, differentiated=False, forward_only=True) if barred else leaf


def changed(leaf: Any, *, dtype: Any = None, sharding: Any = None) -> Any:
    """Returns a `jax.ShapeDtypeStruct` with another dtype or sharding; JAX 0.6.0 has no `update` of it."""
    return jax.ShapeDtypeStruct(
        leaf.shape, dtype or leaf.dtype, sharding=sharding or leaf.sharding, weak_type=leaf.weak_type
    )


def variable_leaves(variables: Any) -> tuple[Leaf, ...]:
    """Returns the leaves of a model's variables: those of `params` are its parameters, and the others its state.

    Variables are Flax's collections, or a training state that has `params` beside the state of an optimizer, as an
    entry or an attribute. Without `params`, all leaves are parameters.
    """
    if not _has_params(variables):
        return leaves_of(variables, naming.PARAM, differentiated=True)
    params = variables[_PARAMS] if isinstance(variables, Mapping) else variables.params
    # A training state may have been made with all of Flax's collections in place of the parameters.
    depth = 2 if not isinstance(variables, Mapping) and _has_params(params) else 1
    found = [_variable(keys, depth) for keys in tree_paths(variables)]
    families = (naming.PARAM, naming.STATE)
    names = {family: iter(unique_names([keys for each, keys in found if each == family])) for family in families}
    leaves = zip(found, jax.tree_util.tree_leaves(variables), strict=True)
    return tuple(_leaf(family, next(names[family]), leaf, family == naming.PARAM) for (family, _), leaf in leaves)


def _has_params(variables: Any) -> bool:
    """Returns whether variables have parameters beside other things."""
    return _PARAMS in variables if isinstance(variables, Mapping) else hasattr(variables, _PARAMS)


def _variable(keys: Sequence[str], depth: int) -> tuple[str, Sequence[str]]:
    """Returns the family of a leaf of variables, and the keys of its name."""
    if list(keys[:depth]) == [_PARAMS] * depth:
        return naming.PARAM, keys[depth:]
    return naming.STATE, keys[1:] if depth == 2 and keys[0] == _PARAMS else keys


def leaves_of(tree: Any, family: str, *, differentiated: bool = False) -> tuple[Leaf, ...]:
    """Returns the leaves of a pytree of arrays or shapes, named by their paths; no two have one name.

    Args:
        tree: The pytree.
        family: The family they belong to.
        differentiated: Whether those of inexact dtype are differentiated.
    """
    named = zip(tree_names(tree), jax.tree_util.tree_leaves(tree), strict=True)
    return tuple(_leaf(family, name, leaf, differentiated) for name, leaf in named)


def _leaf(family: str, name: str, leaf: Any, differentiated: bool) -> Leaf:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    inexact = bool(jnp.issubdtype(aval.dtype, jnp.inexact))
    return Leaf(
        family=family, name=name, shape=tuple(aval.shape), dtype=aval.dtype, differentiated=differentiated and inexact
    )
