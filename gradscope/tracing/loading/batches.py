"""Batches are read from a file or an input pipeline, in place of the model's own.

A file's tensors become the batch's leaves by name: `image` is `batch["image"]`, `text/mask` is `batch["text"]["mask"]`.
A `.npy` file has the only leaf of a batch that has one. A dump serves as well: its inputs are a batch, also where all
of them are in one argument of a function, `batch/image`.

The model's own `batch` determines what is expected. The leading axis of every leaf is the example, and the file decides
how many there are; everything else must agree. Numbers are converted to the width that the model expects, and a note
says so. A conversion that would change an integer, or its kind, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import as_numpy_dtype, is_key, storable
from gradscope.dump.reader import DumpFile, open_dump
from gradscope.errors import DumpError, UsageError
from gradscope.frameworks.modules.tree_names import tree_names
from gradscope.naming import printable
from gradscope.tracing.data.files.file_bounds import require_bounded
from gradscope.tracing.data.mismatches import dtype_in_words
from gradscope.tracing.loading.pipelines import Pipeline

#: An array, or the shape and dtype of one that has not been read.
_Leaf: TypeAlias = np.ndarray | jax.ShapeDtypeStruct


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """A `DataRequest` names a batch.

    Attributes:
        location: A file or folder, or a pipeline as a target names it.
        index: The index of one of a pipeline's batches, from 0; None for the first, and for a file.
        leaves: The leaves of that batch by name, where it has been read already.
        partial: Whether it may lack leaves, because only some values are computed, which may not need them.
    """

    location: str
    index: int | None = None
    leaves: Mapping[str, np.ndarray] | None = None
    partial: bool = False

    def batch(self, expected: Any) -> FileBatch:
        """Returns the batch; see `batch_from_file` and `pipeline_leaves`.

        Args:
            expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `batch` would return.

        Returns:
            The batch.

        Raises:
            UsageError: There is no such pipeline, or it has fewer batches.
            ModelError: The pipeline failed.
            DumpError: The batch is not such as the model's own; the message lists every mismatch.
        """
        if ":" in self.location and not Path(self.location).exists():
            leaves = pipeline_leaves(self.location, self.index) if self.leaves is None else self.leaves
            return checked(f"batch {self.index or 0} of {self.location}", expected, leaves, partial=self.partial)
        if self.index is not None:
            raise UsageError(
                f"{self.location} has one batch", hint="--batch-index selects one of a pipeline: module:NAME"
            )
        return batch_from_file(Path(self.location), expected, partial=self.partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """A `FileBatch` is a batch from a file or a pipeline.

    Attributes:
        batch: Pytree of NumPy arrays, of the structure and dtypes that the model expects.
        size: Number of examples.
        notes: Sentences about conversions.
        absent: Names of the leaves that it lacks; their values are zeros.
    """

    batch: Any
    size: int
    notes: tuple[str, ...]
    absent: frozenset[str]


def batch_from_file(path: Path, expected: Any, *, partial: bool = False) -> FileBatch:
    """Returns the batch of a file.

    Args:
        path: An `.npz`, an `.npy`, a `.safetensors` file, a folder of those, or a dump.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `batch` would return.
        partial: Whether it may lack leaves.

    Returns:
        The batch.

    Raises:
        DumpError: The file cannot be read, or does not contain such a batch; the message lists every mismatch.
    """
    model_leaves = dict(zip(tree_names(expected), jax.tree_util.tree_leaves(expected), strict=True))
    with open_dump(path) as file:
        names = _names(file, path, model_leaves)
        stated = {name: _stated(file, key) for name, key in names.items()}
        # Before anything is read: a compressed file can state, and have, a thousand times its own size.
        _require_fitting(str(path), model_leaves, stated, partial=partial)
        require_bounded(path, file, names.values())
        arrays = {name: file.array(key) for name, key in names.items()}
        return checked(str(path), expected, arrays, partial=partial)


def pipeline_leaves(text: str, index: int | None, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns one batch of an input pipeline, by the names of its leaves.

    Args:
        text: The pipeline, see `Pipeline`.
        index: The index of the batch, from 0; None for the first.
        seed: Seeds the generators that it may use without a key.

    Returns:
        Arrays by name.

    Raises:
        UsageError: There is no such pipeline, or it has fewer batches.
        ModelError: The pipeline failed.
    """
    try:
        return Pipeline(text, seed).leaves(index or 0)
    except UsageError as error:
        raise UsageError(
            error.message, hint=error.hint or ("give a smaller --batch-index" if index else None)
        ) from error


def checked(what: str, expected: Any, arrays: Mapping[str, np.ndarray], *, partial: bool = False) -> FileBatch:
    """Returns arrays as a batch of the structure and dtypes that the model expects.

    Args:
        what: What they are, as a message begins.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `batch` would return.
        arrays: The leaves by name.
        partial: Whether they may lack leaves.

    Raises:
        DumpError: They are not such a batch; the message lists every mismatch.
    """
    leaves, tree = jax.tree_util.tree_flatten(expected)
    model_leaves = dict(zip(tree_names(expected), leaves, strict=True))
    _require_fitting(what, model_leaves, arrays, partial=partial)
    absent = model_leaves.keys() - arrays.keys()
    size = next(iter(_sizes(arrays).values()), 1)
    present = {name: leaf for name, leaf in model_leaves.items() if name not in absent}
    found = {name: _as(leaf.dtype, arrays[name]) for name, leaf in present.items()}
    blank = {
        name: np.zeros((size, *model_leaves[name].shape[1:])[: model_leaves[name].ndim], model_leaves[name].dtype)
        for name in absent
    }
    return FileBatch(
        batch=jax.tree_util.tree_unflatten(tree, [(found | blank)[name] for name in model_leaves]),
        size=size,
        notes=tuple(_notes(present, arrays)),
        absent=frozenset(absent),
    )


def _names(file: DumpFile, path: Path, model_leaves: Mapping[str, Any]) -> dict[str, str]:
    """Returns the keys of a file's tensors by the names of the leaves that they are."""
    entries = [entry for entry in file.manifest.entries if entry.family in (naming.TENSOR, naming.INPUT)]
    keys = {entry.name: naming.key_of(entry.family, entry.name) for entry in entries}
    if path.suffix == ".npy" and len(model_leaves) == 1:
        return dict(zip(model_leaves, keys.values(), strict=True))
    inside = {name.partition("/")[2]: key for name, key in keys.items()}
    in_one = len({name.partition("/")[0] for name in keys}) == 1
    return inside if in_one and inside.keys() == model_leaves.keys() else keys


def _stated(file: DumpFile, key: str) -> _Leaf:
    """Returns the shape and dtype that the file states for an array; the data of random keys is read."""
    entry = file.entry(key)
    if is_key(entry.dtype) or not storable(entry.dtype):
        return file.array(key)
    return jax.ShapeDtypeStruct(entry.shape, as_numpy_dtype(entry.dtype))


#: What a loss of classes is called, for a batch that has their numbers.
_CLASSES: Final = "; --loss cross-entropy of a framework's model takes labels that are numbers of classes"


def _require_fitting(what: str, model_leaves: Mapping[str, Any], arrays: Mapping[str, _Leaf], *, partial: bool) -> None:
    absent = model_leaves.keys() - arrays.keys()
    problems = list(_problems(model_leaves, arrays, frozenset() if partial else absent))
    if problems:
        own = ", ".join(f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in model_leaves.items())
        classes = any(_may_be_classes(leaf, arrays[name]) for name, leaf in model_leaves.items() if name in arrays)
        raise DumpError(
            f"{what} is not a batch for this model: {'; '.join(problems)}",
            hint=f"the model's own batch is {own}{_CLASSES if classes else ''}",
        )


def _may_be_classes(leaf: _Leaf, array: _Leaf) -> bool:
    """Returns whether a file has the numbers of classes where the model expects a row of numbers for each."""
    kinds = jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.issubdtype(array.dtype, jnp.integer)
    return kinds and len(leaf.shape) == len(array.shape) + 1 and leaf.shape[1:-1] == array.shape[1:]


def _problems(model_leaves: Mapping[str, Any], arrays: Mapping[str, _Leaf], lacking: Collection[str]) -> Iterator[str]:
    for name, leaf in model_leaves.items():
        if name in arrays:
            yield from _leaf_problems(name, leaf, arrays[name])
        elif name in lacking:
            yield f"it lacks {printable(name)}"
    yield from (f"the model has no {printable(name)}" for name in arrays if name not in model_leaves)
    sizes = {name: size for name, size in _sizes(arrays).items() if name in model_leaves}
    if 0 in sizes.values():
        yield "it has no examples"
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{printable(name)} {size}" for name, size in sizes.items())
        yield f"its leaves differ in their number of examples ({counts})"


def _leaf_problems(name: str, leaf: Any, array: _Leaf) -> Iterator[str]:
    if array.ndim != leaf.ndim or array.shape[1:] != leaf.shape[1:]:
        yield f"{printable(name)} has shape {list(array.shape)}, expected {_any_size(leaf.shape)}"
    found, expected = dtype_in_words(array.dtype), dtype_in_words(leaf.dtype)
    if found != expected:
        yield f"{printable(name)} is {found} ({array.dtype}), expected {expected} ({leaf.dtype})"
    elif expected == "integer" and isinstance(array, np.ndarray) and not _fits(leaf.dtype, array):
        yield f"{printable(name)} has values from {array.min()} to {array.max()}, which {leaf.dtype} cannot represent"


def _any_size(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(["N", *map(str, shape[1:])][: len(shape)]) + "]"


def _fits(dtype: Any, array: np.ndarray) -> bool:
    limits = jnp.iinfo(dtype)
    return array.size == 0 or bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)


def _sizes(arrays: Mapping[str, _Leaf]) -> dict[str, int]:
    """Returns the number of examples by leaf; scalars have none."""
    return {name: array.shape[0] for name, array in arrays.items() if array.ndim}


def _as(dtype: Any, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, as it does in JAX
        return array.astype(dtype, copy=False)


def _notes(model_leaves: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    for name, leaf in model_leaves.items():
        if arrays[name].dtype != leaf.dtype:
            yield f"{printable(name)} was converted from {arrays[name].dtype} to {leaf.dtype}"
