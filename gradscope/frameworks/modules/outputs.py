"""Outputs are a module's return value as a pytree of arrays whose leaves have the user's names.

A dataclass becomes a dictionary of its fields and a named tuple one of its names, so that `output.logits` is named
`logits`; values that are not arrays (a string, a None, a flag) are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.frameworks.modules.tree_names import tree_names


def named_outputs(value: Any) -> Any:
    """Returns the arrays in a module's return value; None where there are none.

    Args:
        value: Arrays in dictionaries, sequences, dataclasses or any registered pytree.
    """
    if isinstance(value, Mapping):
        return _without_none({str(key): named_outputs(each) for key, each in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return named_outputs(fields)
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return named_outputs(dict(zip(names, value, strict=True)))
    if isinstance(value, tuple | list):
        return tuple(named_outputs(each) for each in value) or None
    if isinstance(value, jax.Array | np.ndarray):
        return value
    leaves = jax.tree_util.tree_leaves(value)
    opaque = len(leaves) == 1 and leaves[0] is value
    return None if opaque or not leaves else named_outputs(_by_path(value))


def floating_outputs(outputs: Any) -> dict[str, Any]:
    """Returns the outputs of floating-point dtype by path, in order."""
    return {path: leaf for path, leaf in _by_path(outputs).items() if jnp.issubdtype(leaf.dtype, jnp.floating)}


def updated_leaves(updated: Any, before: Any) -> dict[str, Any]:
    """Returns the leaves by path that are other objects than before; a call did not touch the remaining leaves."""
    known = _by_path(before)
    return {path: leaf for path, leaf in _by_path(updated).items() if leaf is not known.get(path)}


def parted(returned: Any, structure: Any) -> tuple[Any, Any]:
    """Returns what a function returned with None in the place of the one part of this structure, and that part.

    The part is None where there is none, or several: which of them the next step starts from is known to the function's
    caller alone.
    """

    def is_it(value: Any) -> bool:
        return structure.num_leaves > 0 and jax.tree_util.tree_structure(value) == structure

    parts = [each for each in jax.tree_util.tree_leaves(returned, is_leaf=is_it) if is_it(each)]
    if len(parts) != 1:
        return returned, None
    return jax.tree_util.tree_map(lambda each: None if is_it(each) else each, returned, is_leaf=is_it), parts[0]


def _by_path(tree: Any) -> dict[str, Any]:
    return dict(zip(tree_names(tree), jax.tree_util.tree_leaves(tree), strict=True))


def _without_none(entries: Mapping[str, Any]) -> dict[str, Any] | None:
    return {key: each for key, each in entries.items() if each is not None} or None
