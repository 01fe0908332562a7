"""Random keys of a checkpoint are read where they are of the kind of the model, typed or as integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from gradscope.tracing.data.absent_collections import is_random_key
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.variable_names import Matches
from gradscope.tracing.leaves import Leaf


def typed_keys(found: Matches, leaves: Sequence[Leaf], tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """Returns random keys that a framework has written as the integers that they are made of, as keys of the model."""
    typed: dict[str, SavedTensor] = {}
    for name, leaf in zip(found.names, leaves, strict=True):
        if name is not None and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
            if (tuple(tensors[name].shape), tensors[name].dtype) == (data.shape, str(data.dtype)):
                typed[name] = replace(tensors[name], shape=tuple(leaf.shape), dtype=str(leaf.dtype))
    return typed


def without_other_keys(found: Matches, leaves: Sequence[Leaf], tensors: Mapping[str, SavedTensor]) -> Matches:
    """Returns the matches without random keys that are of another kind than the model's."""
    names = tuple(
        None if name is not None and is_random_key(leaf) and tensors[name].dtype != str(leaf.dtype) else name
        for name, leaf in zip(found.names, leaves, strict=True)
    )
    return replace(found, names=names)
