"""A step carries on to the next, beside the parameters, collections that the loss updates, and random keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from gradscope.training.state import collections_of, named_leaves


def carried_on(variables: Any, aux: Any) -> dict[str, Any]:
    """Returns the collections of the next step's variables.

    A leaf that the loss returned replaces the old one, if it has its shape: as `aux["batch_stats"]["mean"]`, or by its
    path, `aux["batch_stats/mean"]`. A random key that it did not return is folded with 1, so that every step draws
    anew, and the key in a state is the one that its step draws with.

    Args:
        variables: The variables of this step.
        aux: What the loss returned beside the scalar; None where its collections are not carried on.
    """
    collections = collections_of(variables)
    returned = named_leaves(dict(cast("Mapping[str, Any]", aux))) if isinstance(aux, Mapping) else {}

    def carried(path: Any, old: Any) -> Any:
        new = returned.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        if new is not None and jnp.shape(new) == jnp.shape(old):
            return new if new.dtype == old.dtype else jnp.asarray(new, old.dtype)
        return _folded(old, 1) if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else old

    return jax.tree_util.tree_map_with_path(carried, collections)


def with_keys_folded(variables: Any, number: Any) -> Any:
    """Returns variables whose random keys are folded with a number, so that each number draws anew."""
    return jax.tree_util.tree_map(
        lambda leaf: _folded(leaf, number) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, variables
    )


def _folded(keys: Any, number: Any) -> Any:
    """Returns typed keys of any shape, each folded with a number."""
    flat = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys.ravel())
    return flat.reshape(keys.shape)
