"""Checkpoints provide saved variables in place of those that a model's `init` makes.

A tensor is found by its path, `params/head/kernel`, by its key in a dump, `param/head/kernel`, or by its name in its
collection, `head/kernel`; also with dots for slashes, as PyTorch writes them. The checkpoint must have all of them and
no others, each of the shape that `init` gives it; one message lists all mismatches. Only random keys, the collection
`rngs`, may be missing, and are then those of `init`.

A tensor keeps the checkpoint's own dtype, as it would where a user loads it, as far as JAX has it enabled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.errors import DumpError
from gradscope.frameworks.modules.adapter import RNGS
from gradscope.naming import printable
from gradscope.tracing.data.checkpoint_files import SavedTensor, open_checkpoint
from gradscope.tracing.data.key_map import KeyMap
from gradscope.tracing.data.mismatches import mismatches
from gradscope.tracing.tracer import Leaf, variable_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A `CheckpointRequest` names a checkpoint and the renaming of its tensors."""

    path: Path
    key_map: KeyMap = field(default_factory=KeyMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A `Checkpoint` holds variables that were read from a file.

    Attributes:
        variables: Pytree of NumPy arrays, of the structure that the model expects.
        notes: Sentences about differences from the variables that `init` makes.
    """

    variables: Any
    notes: tuple[str, ...]


def variables_from_file(path: Path, expected: Any, key_map: KeyMap, make: Callable[[], Any]) -> Checkpoint:
    """Returns the variables of a checkpoint.

    Args:
        path: The checkpoint, see `gradscope.tracing.data.checkpoint_files`.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `init` would return.
        key_map: Renames the checkpoint's tensors first.
        make: Returns `init`'s variables; called where the checkpoint lacks random keys.

    Returns:
        The variables.

    Raises:
        DumpError: It cannot be read, or does not contain such variables; the message lists every mismatch.
        MachineError: The library that reads it is not installed.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(expected)
    full = [jax.tree_util.keystr(keys, simple=True, separator="/") or "value" for keys, _ in paths]
    leaves = variable_leaves(expected)
    with open_checkpoint(path) as saved:
        renamed_tensors = _renamed(path, saved, key_map)
        ordered = path.suffix == ".eqx" and not key_map.substitutions
        spellings = [(str(at),) for at in range(len(leaves))] if ordered else list(map(_spellings, full, leaves))
        found = [next((each for each in known if each in renamed_tensors), None) for known in spellings]
        problems = list(mismatches(*_by_path(full, leaves, found, renamed_tensors)))
        if problems:
            raise DumpError(
                f"{printable(str(path))} is not a checkpoint of this model: {'; '.join(problems)}",
                hint="rename its tensors with --map-keys FILE, whose lines are REGEX -> REPLACEMENT",
            )
        made = jax.tree_util.tree_leaves(make()) if None in found else []
        arrays = [
            made[at] if name is None else _as_keys(renamed_tensors[name].read(), leaf)
            for at, (name, leaf) in enumerate(zip(found, jax.tree_util.tree_leaves(expected), strict=True))
        ]
    return Checkpoint(
        variables=jax.tree_util.tree_unflatten(tree, arrays), notes=tuple(_notes(leaves, arrays))
    )  # fmt: skip


def _renamed(path: Path, saved: Mapping[str, SavedTensor], key_map: KeyMap) -> dict[str, SavedTensor]:
    names = {name: key_map.renamed(name) for name in saved}
    twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
    if twice:
        raise DumpError(f"{printable(str(path))}: --map-keys renames several tensors to {printable(twice[0])}")
    return {name: saved[old] for old, name in names.items() if name}


def _spellings(full: str, leaf: Leaf) -> tuple[str, ...]:
    """Returns the names under which a variable may be stored."""
    names = (full, naming.key_of(leaf.family, leaf.name), leaf.name)
    return (*names, *(name.replace("/", ".") for name in names))


def _by_path(
    full: list[str], leaves: tuple[Leaf, ...], found: list[str | None], renamed_tensors: Mapping[str, SavedTensor]
) -> tuple[dict[str, Leaf], dict[str, SavedTensor]]:
    """Returns the expected tensors by path, and the saved ones, by path where they have a name of a variable."""
    paths = list(zip(full, leaves, found, strict=True))
    expected = {path: leaf for path, leaf, name in paths if name is not None or not _is_random_key(leaf)}
    others = {name: each for name, each in renamed_tensors.items() if name not in found}
    return expected, {**others, **{path: renamed_tensors[name] for path, _, name in paths if name is not None}}


def _as_keys(array: np.ndarray, leaf: Any) -> Any:
    """Returns an array as typed random keys where the model expects such; a file has their data."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return array
    return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(jnp.zeros((), leaf.dtype)))


def _is_random_key(leaf: Leaf) -> bool:
    """Returns whether a variable is a module's random key, which few checkpoints contain."""
    return leaf.family == naming.STATE and leaf.name.startswith(f"{RNGS}/")


def _notes(leaves: tuple[Leaf, ...], arrays: list[np.ndarray]) -> Iterator[str]:
    kept = Counter(
        (str(jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)), str(leaf.dtype))
        for leaf, array in zip(leaves, arrays, strict=True)
    )
    for (saved, made), count in kept.items():
        if saved != made:
            yield f"kept as in the checkpoint: {count} of {saved}, where init makes {made}"
