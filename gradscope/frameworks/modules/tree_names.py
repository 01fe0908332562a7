"""Names of a pytree's leaves: their paths, joined by `/`."""

from __future__ import annotations

from typing import Any

import jax

from gradscope.naming.paths import unique_names


def tree_names(tree: Any) -> list[str]:
    """Returns the name of each leaf of a pytree, in order; no two are the same, and a tree of one leaf is `value`."""
    return unique_names(tree_paths(tree))


def tree_paths(tree: Any) -> list[tuple[str, ...]]:
    """Returns the keys, indices and attributes on the way to each leaf of a pytree, in order."""
    return [path_components(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def path_components(path: Any) -> tuple[str, ...]:
    """Returns the keys, indices and attributes of one of JAX's paths as strings."""
    return tuple(jax.tree_util.keystr((key,), simple=True, separator="/") for key in path)
