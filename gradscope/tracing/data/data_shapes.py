"""Data shapes describe a batch by the tensors of real data, where the user has not described it otherwise.

They are the inputs of a module without `--input`, and the batch of a file of functions that has no `batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import storable
from gradscope.dump.reader import open_dump
from gradscope.frameworks.modules.input_spec import InputSpec

#: The name of the tensor of a batch that is an array.
ALONE: Final = "value"


def data_shapes(path: Path) -> dict[str, InputSpec]:
    """Returns the tensors of a file by name, in its order.

    Args:
        path: A file for `--data`: an `.npz`, an `.npy`, a dump.

    Returns:
        Their dtypes and shapes.

    Raises:
        DumpError: The file cannot be read.
    """
    with open_dump(path) as file:
        entries = [entry for entry in file.manifest.entries if entry.family in (naming.TENSOR, naming.INPUT)]
        return {entry.name: InputSpec.of(entry.dtype, entry.shape) for entry in entries}


def array_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, InputSpec]:
    """Returns the arrays of a batch by name, in its order, without those that are not numbers."""
    numbers = {name: array for name, array in arrays.items() if storable(array.dtype.name)}
    return {name: InputSpec.of(array.dtype.name, array.shape) for name, array in numbers.items()}


def batch_like(shapes: Mapping[str, InputSpec]) -> Callable[[Any, int], Any]:
    """Returns the function `batch(key, size)` of zeros in the place of a batch's tensors.

    `text/mask` is `batch["text"]["mask"]`, tensors that are numbered from 0 are a tuple, and a single tensor that is
    called `value` is the batch.

    Args:
        shapes: The tensors by name, examples first.
    """

    def batch(_key: Any, size: int) -> Any:
        leaves = {tuple(name.split("/")): _zeros(spec, size) for name, spec in shapes.items()}
        return leaves[ALONE,] if list(leaves) == [(ALONE,)] else _nested(leaves)

    return batch


def _zeros(spec: InputSpec, size: int) -> jax.Array:
    shape = (size, *spec.shape[1:]) if spec.shape else ()
    return jnp.zeros(shape, jax.dtypes.canonicalize_dtype(jnp.dtype(spec.dtype)))


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> Any:
    """Returns the pytree whose leaves have these paths."""
    if list(leaves) == [()]:
        return leaves[()]
    inside: dict[str, dict[tuple[str, ...], Any]] = {}
    for (key, *rest), leaf in leaves.items():
        inside.setdefault(key, {})[tuple(rest)] = leaf
    found = {key: _nested(each) for key, each in inside.items()}
    positions = [str(at) for at in range(len(found))]
    return tuple(found[at] for at in positions) if set(found) == set(positions) else found
