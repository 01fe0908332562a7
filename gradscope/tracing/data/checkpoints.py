"""Checkpoints: saved variables in place of those that a model's `init` makes.

A tensor is found by its path, `params/head/kernel`, by its key in a dump, `param/head/kernel`, or by what it is called
in its collection, `head/kernel`; with dots for slashes too, as PyTorch's world writes them. All of them have to be
there and nothing else, each of the shape that `init` gives it; everything that is not so is told at once. Random keys
alone, the collection `rngs`, may be missing, and are then those of `init`.

A tensor keeps the checkpoint's own dtype, as it would where a user loads it, as far as JAX has it enabled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradscope import naming
from gradscope.errors import DumpError
from gradscope.frameworks.modules.adapter import RNGS
from gradscope.naming import printable
from gradscope.tracing.data.checkpoint_files import SavedTensor, open_checkpoint
from gradscope.tracing.data.key_map import KeyMap
from gradscope.tracing.data.mismatches import disagreements
from gradscope.tracing.tracer import Leaf, variable_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """Which checkpoint is asked for, and how its tensors are renamed."""

    path: Path
    key_map: KeyMap = field(default_factory=KeyMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Variables read from a file.

    Attributes:
        variables: Pytree of NumPy arrays, of the structure that the model expects.
        notes: Sentences about what is not as `init` makes it.
    """

    variables: Any
    notes: tuple[str, ...]


def variables_from_file(path: Path, expected: Any, key_map: KeyMap, make: Callable[[], Any]) -> Checkpoint:
    """The variables that a checkpoint holds.

    Args:
        path: The checkpoint, see `gradscope.tracing.data.checkpoint_files`.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `init` would give.
        key_map: Renames the checkpoint's tensors first.
        make: Gives `init`'s variables; called where the checkpoint lacks random keys.

    Raises:
        DumpError: It cannot be read, or does not hold such variables; the message lists every disagreement.
        MachineError: The library that reads it is not installed.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(expected)
    full = [jax.tree_util.keystr(keys, simple=True, separator="/") or "value" for keys, _ in paths]
    leaves = variable_leaves(expected)
    with open_checkpoint(path) as saved:
        named = _renamed(path, saved, key_map)
        ordered = path.suffix == ".eqx" and not key_map.substitutions
        spellings = [(str(at),) for at in range(len(leaves))] if ordered else list(map(_spellings, full, leaves))
        found = [next((each for each in known if each in named), None) for known in spellings]
        problems = list(disagreements(*_by_path(full, leaves, found, named)))
        if problems:
            raise DumpError(
                f"{printable(str(path))} is no checkpoint of this model: {'; '.join(problems)}",
                hint="rename its tensors with --map-keys FILE, whose lines are REGEX -> REPLACEMENT",
            )
        made = jax.tree_util.tree_leaves(make()) if None in found else []
        arrays = [made[at] if name is None else named[name].read() for at, name in enumerate(found)]
    return Checkpoint(
        variables=jax.tree_util.tree_unflatten(tree, arrays), notes=tuple(_notes(leaves, arrays))
    )  # fmt: skip


def _renamed(path: Path, saved: Mapping[str, SavedTensor], key_map: KeyMap) -> dict[str, SavedTensor]:
    names = {name: key_map.renamed(name) for name in saved}
    twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
    if twice:
        raise DumpError(f"{printable(str(path))}: --map-keys gives several tensors the name {printable(twice[0])}")
    return {name: saved[old] for old, name in names.items() if name}


def _spellings(full: str, leaf: Leaf) -> tuple[str, ...]:
    """What a variable may be called."""
    names = (full, naming.key_of(leaf.family, leaf.name), leaf.name)
    return (*names, *(name.replace("/", ".") for name in names))


def _by_path(
    full: list[str], leaves: tuple[Leaf, ...], found: list[str | None], named: Mapping[str, SavedTensor]
) -> tuple[dict[str, Leaf], dict[str, SavedTensor]]:
    """What is expected by path, and what there is: by path where it is called anything that the variable may be."""
    paths = list(zip(full, leaves, found, strict=True))
    expected = {path: leaf for path, leaf, name in paths if name is not None or not _is_random_key(leaf)}
    beyond = {name: each for name, each in named.items() if name not in found}
    return expected, {**beyond, **{path: named[name] for path, _, name in paths if name is not None}}


def _is_random_key(leaf: Leaf) -> bool:
    """Whether a variable is what a framework's module draws from, which is no weight and in few checkpoints."""
    return leaf.family == naming.STATE and leaf.name.startswith(f"{RNGS}/")


def _notes(leaves: tuple[Leaf, ...], arrays: list[np.ndarray]) -> Iterator[str]:
    kept = Counter(
        (str(jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)), str(leaf.dtype))
        for leaf, array in zip(leaves, arrays, strict=True)
    )
    for (saved, made), count in kept.items():
        if saved != made:
            yield f"kept as in the checkpoint: {count} of {saved}, where init makes {made}"
