"""Pytrees are alike that have one structure, and arrays of the same shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import jax

#: What a pytree is: its type, and the place, shape and dtype of each leaf.
Outline: TypeAlias = tuple[type, tuple[tuple[str, tuple[int, ...], str], ...]]


def alike(outline: Outline, tree: Any) -> Iterator[Any]:
    """Yields the pytrees of an outline in a pytree, none of which is in another one."""
    if outline_of(tree) == outline:
        yield tree
    else:
        for _, inside in children(tree):
            yield from alike(outline, inside)


def children(tree: Any) -> list[tuple[str, Any]]:
    """Returns what a pytree consists of, and where; nothing of a leaf."""
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda each: each is not tree)[0]
    return [(jax.tree_util.keystr(path), inside) for path, inside in found if path]


def outline_of(tree: Any) -> Outline:
    """Returns what a pytree is."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    of_leaves = ((jax.tree_util.keystr(path), leaf) for path, leaf in leaves if is_array(leaf))
    kind = type(None) if jax.tree_util.all_leaves([tree]) else type(tree)
    return kind, tuple((place, leaf.shape, str(leaf.dtype)) for place, leaf in of_leaves)


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
