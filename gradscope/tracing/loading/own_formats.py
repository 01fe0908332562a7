"""Own formats are checkpoints that a framework reads into the user's own module.

Equinox's `.eqx` has an order and no names, Keras' `.keras` and `.weights.h5` have a layout of Keras' own: both can only
be read with the module. All mismatches are listed by path before the framework would stop at the first. Flax's formats
name their tensors, and are read like any other file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax.numpy as jnp

from gradscope.errors import DumpError
from gradscope.frameworks.detect import own_format_of
from gradscope.frameworks.modules.adapter import Described
from gradscope.naming import printable
from gradscope.tracing.data.checkpoint_files import open_checkpoint
from gradscope.tracing.data.mismatches import mismatches
from gradscope.tracing.loading.model import Restored

#: The errors that the frameworks raise for a file that does not fit.
_LOADING_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile)


def restored(found: Any, checkpoint: Path, build: Callable[[], object]) -> Restored | None:
    """Returns a module with the values of a checkpoint.

    Args:
        found: The module; Keras changes it, Equinox makes another.
        checkpoint: The file.
        build: Makes a module create its variables that has not created them.

    Returns:
        The module, with sentences about the file; None where its framework has no format of its own with that suffix.

    Raises:
        DumpError: The file is missing or damaged, or of another module; the message lists every mismatch.
    """
    own = own_format_of(found, checkpoint)
    if own is None:
        return None
    if not own.built:
        build()
    hint = None
    try:
        expected, named = own.layouts()
        saved = _in_order(expected, checkpoint) if named is None else named
        behind = {name: each for name, each in saved.items() if name not in expected} if own.leads else {}
        if not _may_be_of_training(expected, behind):
            behind = {}
        first = {name: each for name, each in saved.items() if name not in behind}
        if not any(mismatches(expected, first, exact=own.exact)):
            return Restored(value=own.restore(), notes=tuple(_notes(checkpoint, expected, list(behind.values()))))
        problems = list(mismatches(expected, saved, exact=own.exact))
        hint = own.hint(len(saved))
    except _LOADING_ERRORS as error:
        problems = [str(error)]
    raise DumpError(
        f"{printable(str(checkpoint))} is not a checkpoint of this module: {'; '.join(problems)}", hint=hint
    )


def _may_be_of_training(expected: Mapping[str, Described], behind: Mapping[str, Described]) -> bool:
    """Returns whether the tensors behind a model's may be what a training run saves with it, and not more layers.

    That has a whole number, which counts steps or seeds a generator, or a tensor for each of the model's.
    """
    shapes = iter([each.shape for each in behind.values()])
    counts = any(jnp.issubdtype(each.dtype, jnp.integer) for each in behind.values())
    return counts or all(
        each.shape in shapes for each in expected.values() if each.shape and jnp.issubdtype(each.dtype, jnp.inexact)
    )


def _notes(checkpoint: Path, expected: Mapping[str, Described], behind: Sequence[Described]) -> Iterator[str]:
    if not behind:
        return
    count = len(expected)
    names = list(expected)
    fit = next(
        (
            at
            for at in range(len(behind) - count + 1)
            if not any(mismatches(expected, dict(zip(names, behind[at : at + count], strict=True)), exact=True))
        ),
        None,
    )
    rivals = "" if fit is None else f" (tensors {count + fit + 1:,} to {2 * count + fit:,} would fit, too)"
    yield (
        f"{printable(checkpoint.name)}: the first {count:,} tensors are taken for the model's, as they fit, and "
        f"{len(behind):,} behind them left out{rivals}; a model that is not the first in its file, as behind an "
        "optimizer's momentum, has to be saved alone: eqx.tree_serialise_leaves(FILE, model)"
    )


def _in_order(expected: Mapping[str, Described], checkpoint: Path) -> dict[str, Described]:
    """Returns the tensors of a file without names by the expected names, and by numbers where there are more."""
    with open_checkpoint(checkpoint) as saved:
        others = (f"tensor {number}" for number in range(len(expected), len(saved)))
        return dict(zip((*expected, *others), saved.values(), strict=False))
