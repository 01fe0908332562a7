"""Checkpoint files contain tensors by name; the suffix, or the contents of a folder, decides which library reads them.

| what | read by |
|---|---|
| `.npz`, `.npy`, `.safetensors`, a folder of those, a dump, Equinox's `.eqx` | gradscope itself |
| Flax's `.msgpack`, `checkpoint_N` without a suffix, and any other name that begins like one | Flax |
| an Orbax checkpoint, a folder | Orbax |

A folder that has several checkpoints, as a training run writes them, stands for the last of them.

An `.eqx` file has no names, only an order: its tensors are named by their position. A target that is an Equinox module
reads it itself, as a Keras model reads `.keras` and `.weights.h5` (`own_formats`), and this module is not used. Pickles
are refused, and so are PyTorch's files, which are pickles in a zip file: reading one can run any code.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.dump.reader import open_dump
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located, permitted
from gradscope.errors import DumpError, MachineError
from gradscope.frameworks.extras import install_hint
from gradscope.naming import printable
from gradscope.naming.paths import unique_names
from gradscope.tracing.data.files.checkpoint_folders import (
    SHARDED,
    checkpoint_in,
    is_orbax,
    require_complete,
    require_tensors,
    trees_in,
)
from gradscope.tracing.data.files.file_bounds import require_bounded, require_bounded_arrays
from gradscope.tracing.data.files.file_kinds import kind_of
from gradscope.tracing.data.files.refusals import refusal_of

#: Families of a dump that are a model's variables; in a foreign file, every tensor is a variable.
_FAMILIES: Final = (naming.TENSOR, naming.PARAM, naming.STATE)

#: The errors that Orbax raises for a folder that is damaged.
_ORBAX_ERRORS: Final = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, RecursionError, OSError
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A `SavedTensor` is a tensor in an open checkpoint.

    Attributes:
        shape: Its shape.
        dtype: The name of its dtype.
        read: Reads it.
        origin: Its name in the file, where it has been renamed.
        exact: Whether the user's rules made it, so that its layout is the model's.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    origin: str | None = None
    exact: bool = False

    @classmethod
    def of(cls, array: np.ndarray, *, exact: bool = False) -> SavedTensor:
        """Returns the tensor that an array is."""
        return cls(shape=array.shape, dtype=array.dtype.name, read=lambda: array, exact=exact)

    def called(self, origin: str) -> SavedTensor:
        """Returns the tensor, which has a name in the file."""
        return replace(self, origin=origin)

    def in_shape(self, shape: tuple[int, ...]) -> SavedTensor:
        """Returns the tensor with the same numbers in another shape."""
        return replace(self, shape=shape, read=lambda: self.read().reshape(shape))

    def in_order(self, axes: Sequence[int]) -> SavedTensor:
        """Returns the description of the tensor with its axes in another order."""
        return replace(self, shape=tuple(self.shape[axis] for axis in axes))


@contextmanager
def open_checkpoint(location: Path) -> Generator[Mapping[str, SavedTensor]]:
    """Opens a checkpoint and yields its tensors by name; they can be read as long as it is open.

    Args:
        location: The checkpoint, or a folder of several.

    Yields:
        The tensors by name.

    Raises:
        DumpError: There is none, it is damaged, or of a kind that is refused.
        MachineError: The library that reads it is not installed.
    """
    with permitted(location):
        path = checkpoint_in(location)
    if path.name.endswith(SHARDED):
        raise DumpError(
            f"{printable(str(path))}: it has the names of files, and no tensors",
            hint=f"name the folder that the files are in: {printable(str(path.parent))}",
        )
    with permitted(path):
        kind = kind_of(path)
    if (refused := refusal_of(path, kind)) is not None:
        raise refused
    if kind == "flax":
        yield _tensors_of(_flax_tree(path))
    elif is_orbax(path):
        yield _tensors_of(_orbax_tree(path))
    else:
        require_tensors(path)
        require_complete(path)
        with open_dump(path) as dump:
            entries = [each for each in dump.manifest.entries if each.family in _FAMILIES and each.stored is not None]
            keys = {each.name if each.family == naming.TENSOR else naming.key_of(each.family, each.name): each
                    for each in entries}  # fmt: skip
            require_bounded(path, dump, [naming.key_of(each.family, each.name) for each in entries])
            yield {
                name: SavedTensor(
                    shape=entry.shape,
                    dtype=entry.dtype,
                    read=partial(dump.array, naming.key_of(entry.family, entry.name)),
                )
                for name, entry in keys.items()
            }


def _flax_tree(path: Path) -> Any:
    with located(str(path)), InputFile(path) as file:  # first: a missing file is reported before a missing library
        content = file.read(0, file.size_bytes)
    serialization = _library("flax.serialization")
    with located(str(path)):
        try:
            return serialization.msgpack_restore(content)
        # NumPy parses the name of a dtype that has a comma as Python's literals.
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, SyntaxError) as error:
            # msgpack says nothing of what is nested deeper than it reads.
            why = str(error) or "it is damaged, or nested too deep"
            raise DumpError(f"it is not a Flax checkpoint: {why}") from error


def _orbax_tree(path: Path) -> Any:
    orbax = _library("orbax.checkpoint")
    with located(str(path)):
        try:
            with _without_messages_of("absl", "asyncio"), orbax.PyTreeCheckpointer() as checkpointer:

                def read(tree: Path) -> Any:
                    found = checkpointer.metadata(tree.absolute()).item_metadata
                    if found is None:
                        raise ValueError("files of it are missing, or it is no tree")
                    known = found.tree
                    arrays = [each for each in jax.tree_util.tree_leaves(known) if hasattr(each, "dtype")]
                    stated = [(each.shape or (), np.dtype(each.dtype)) for each in arrays if hasattr(each, "shape")]
                    require_bounded_arrays(tree, stated)
                    # As arrays of the host: the devices on which they were saved need not exist here. Text is no array.
                    of_host = orbax.RestoreArgs(restore_type=np.ndarray)
                    args = jax.tree_util.tree_map(
                        lambda each: of_host if hasattr(each, "dtype") else orbax.RestoreArgs(), known
                    )
                    return checkpointer.restore(tree.absolute(), restore_args=args)

                items = trees_in(path)
                return {item.name: read(item) for item in items} if items else read(path)
        except _ORBAX_ERRORS as error:
            raise DumpError(f"it is not an Orbax checkpoint that can be restored: {error}") from error


@contextmanager
def _without_messages_of(*names: str) -> Generator[None]:
    """Keeps what loggers say from standard error.

    Orbax warns of files that an older checkpoint does not have, and logs the text of a file that it cannot parse, with
    whatever a terminal would take for a command. What it raises says the rest.
    """
    loggers = [logging.getLogger(name) for name in names]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MachineError(f"reading this checkpoint needs {module}: {error}", hint=install_hint(module)) from error


def _tensors_of(tree: Any) -> dict[str, SavedTensor]:
    leaves = list(_leaves(tree, ()))
    names = unique_names([path for path, _ in leaves])
    return {name: SavedTensor.of(np.asarray(leaf)) for name, (_, leaf) in zip(names, leaves, strict=True)}


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        for name, child in cast("Mapping[Any, Any]", tree).items():
            yield from _leaves(child, (*path, str(name)))
    elif isinstance(tree, list | tuple):
        for at, child in enumerate(cast("list[Any]", tree)):
            yield from _leaves(child, (*path, str(at)))
    elif tree is not None and not isinstance(tree, str | bytes) and not _is_random_key(tree):
        yield path, tree


def _is_random_key(leaf: Any) -> bool:
    """Returns whether a leaf is a typed random key, which is not an array of numbers."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
