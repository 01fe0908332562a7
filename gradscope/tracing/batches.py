"""Batches from files: a real batch in place of the model's own.

A file's tensors become the batch's leaves by name: `image` is `batch["image"]`, `text/mask` is `batch["text"]["mask"]`.
A `.npy` file holds the only leaf of a batch that has one. A dump serves as well: its inputs are a batch.

The model's own `batch` says what is expected. The leading axis of every leaf is the example, and the file decides how
many there are; all else must agree. Numbers are converted to the width that the model expects, which is said in a note;
a conversion that would change an integer, or its kind, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.dump.reader import DumpFile, open_dump
from gradscope.errors import DumpError

_KINDS: Final = (
    (jnp.bool_, "boolean"),
    (jnp.integer, "integer"),
    (jnp.floating, "floating-point"),
    (jnp.complexfloating, "complex"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """A batch read from a file.

    Attributes:
        batch: Pytree of NumPy arrays, of the structure and dtypes that the model expects.
        size: Number of examples.
        notes: Sentences about what was converted.
    """

    batch: Any
    size: int
    notes: tuple[str, ...]


def batch_from_file(path: Path, expected: Any) -> FileBatch:
    """The batch that a file holds.

    Args:
        path: An `.npz`, an `.npy` or a dump.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `batch` would give.

    Raises:
        DumpError: The file cannot be read, or does not hold such a batch; the message lists every disagreement.
    """
    wanted, tree = _named_leaves(expected)
    with open_dump(path) as file:
        arrays = _arrays(file, path, wanted)
    problems = [*_name_problems(wanted, arrays)]
    for name in wanted.keys() & arrays.keys():
        problems.extend(_leaf_problems(name, wanted[name], arrays[name]))
    sizes = {name: array.shape[0] for name, array in arrays.items() if name in wanted and array.ndim}
    if len(set(sizes.values())) > 1:
        problems.append(f"leaves disagree on the number of examples: {_listed(sizes)}")
    if problems:
        raise DumpError(f"{path} is not a batch for this model: {'; '.join(sorted(problems))}", hint=_hint(wanted))
    leaves = [arrays[name].astype(leaf.dtype, copy=False) for name, leaf in wanted.items()]
    return FileBatch(
        batch=jax.tree_util.tree_unflatten(tree, leaves),
        size=next(iter(sizes.values()), 1),
        notes=tuple(_conversions(wanted, arrays)),
    )
