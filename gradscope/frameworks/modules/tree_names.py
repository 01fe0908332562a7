"""The leaves of a pytree are named by their paths, joined by `/`."""

from __future__ import annotations

import sys
from typing import Any

import jax

from gradscope.naming.paths import unique_names


def tree_names(tree: Any) -> list[str]:
    """Returns the name of each leaf of a pytree, in order; no two are the same, and a tree of one leaf is `value`."""
    return unique_names(tree_paths(tree))


def tree_paths(tree: Any) -> list[tuple[str, ...]]:
    """Returns the keys, indices and attributes on the way to each leaf of a pytree, in order.

    The attribute in which a variable of Flax NNX has its array is left out, as in the paths that NNX itself uses.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return [path_components(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    found: list[tuple[str, ...]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda each: isinstance(each, nnx.Variable)):
        inside = jax.tree_util.tree_leaves_with_path(leaf)
        found += (path_components((*path, *further[1:])) for further, _ in inside)
    return found


def path_components(path: Any) -> tuple[str, ...]:
    """Returns the keys, indices and attributes of one of JAX's paths as strings."""
    return tuple(jax.tree_util.keystr((key,), simple=True, separator="/") for key in path)
