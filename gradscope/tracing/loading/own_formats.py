"""Own formats are checkpoints that a framework reads into the user's own module.

Equinox's `.eqx` has an order and no names, Keras' `.keras` and `.weights.h5` have a layout of Keras' own: both can only
be read with the module. All mismatches are listed by path before the framework would stop at the first. Flax's formats
name their tensors, and are read like any other file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import jax.numpy as jnp

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located
from gradscope.errors import DumpError
from gradscope.frameworks.detect import own_format_of
from gradscope.frameworks.modules.adapter import Described, OwnFormat
from gradscope.naming import printable
from gradscope.tracing.data.files.checkpoint_files import open_checkpoint
from gradscope.tracing.data.mismatches import mismatches
from gradscope.tracing.loading.model import Restored

#: The errors that the frameworks raise for a file that does not fit.
_LOADING_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile)

#: What to do about a file that has as many tensors as a module, and other shapes.
_OTHER_SHAPES: Final = (
    "a new head and the like stay as init makes them (--keep-init) where gradscope reads the file by its names: read "
    "this one into a module of its own shapes, and save that as .npz, by the names of its variables"
)

#: What to do about one whose tensors have the module's shapes, and other types.
_OTHER_TYPES: Final = (
    "it is of a module in another type: read it into such a module, and save that as .npz, by the names of its "
    "variables, whose types are kept"
)


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
    with located(str(checkpoint)), InputFile(checkpoint):  # the frameworks say less of a file that is not there
        pass
    if not own.built:
        build()
    hint = None
    try:
        expected, named = own.layouts()
        saved = _in_order(expected, checkpoint) if named is None else named
        problems = list(mismatches(expected, saved, exact=own.exact))
        if not problems:
            return Restored(value=own.restore(), notes=())
        tensors = list(saved.values())
        places = _places(expected, tensors, own) if own.leads else []
        if _is_the_model(places, expected, tensors, own):
            note = _note(checkpoint, len(expected), len(saved), places)
            return Restored(value=own.restore(places[0]), notes=(note,))
        hint = (
            _hint_of_place(places, len(expected), len(saved))
            or own.hint(len(saved))
            or _hint_of_as_many(list(expected.values()), tensors)
        )
    except _LOADING_ERRORS as error:
        problems = [str(error)]
    raise DumpError(
        f"{printable(str(checkpoint))} is not a checkpoint of this module: {'; '.join(problems)}", hint=hint
    )


def _hint_of_as_many(expected: Sequence[Described], saved: Sequence[Described]) -> str | None:
    """Returns what to do about a file that has as many tensors as a module; None where it has not."""
    if len(saved) != len(expected):
        return None
    return _OTHER_TYPES if [each.shape for each in saved] == [each.shape for each in expected] else _OTHER_SHAPES


def _hint_of_place(places: Sequence[int], count: int, saved: int) -> str | None:
    """Returns what to do about a file of which the tensors at one place alone, or its first, fit; None otherwise."""
    if not places or (places[0] and places[1:]):
        return None
    return (
        f"its tensors {places[0] + 1:,} to {places[0] + count:,} fit, and the {saved - count:,} others may be more "
        "layers of the same model: save the target's own alone"
    )


def _places(expected: Mapping[str, Described], saved: Sequence[Described], own: OwnFormat) -> list[int]:
    """Returns behind how many tensors of a file those of a model fit, in the order of the file."""
    count = len(expected)
    return [
        at
        for at in range(len(saved) - count + 1)
        if not any(mismatches(expected, dict(zip(expected, saved[at : at + count], strict=True)), exact=own.exact))
    ]


def _is_the_model(
    places: Sequence[int], expected: Mapping[str, Described], saved: Sequence[Described], own: OwnFormat
) -> bool:
    """Returns whether the tensors at the first place are the model's.

    They are not where the others cannot be what a training run saves with it, as they may be more layers, nor where
    several places fit, but for the first of the file, which is where a model most often is.
    """
    if not places or (places[0] and places[1:]):
        return False
    others = [*saved[: places[0]], *saved[places[0] + len(expected) :]]
    return _may_be_of_training(list(expected.values())[: own.without_state], others)


def _may_be_of_training(learned: Sequence[Described], others: Sequence[Described]) -> bool:
    """Returns whether the tensors beside a model's may be what a training run saves with it, and not more layers.

    That has a whole number, which counts steps or seeds a generator, or a tensor for each that is learned.
    """
    shapes = iter([each.shape for each in others])
    counts = any(jnp.issubdtype(each.dtype, jnp.integer) for each in others)
    return counts or all(
        each.shape in shapes for each in learned if each.shape and jnp.issubdtype(each.dtype, jnp.inexact)
    )


def _note(checkpoint: Path, count: int, saved: int, places: Sequence[int]) -> str:
    """Returns which tensors of a file are taken for the model's."""
    first, *rivals = places
    name = printable(checkpoint.name)
    if first:
        return (
            f"{name}: tensors {first + 1:,} to {first + count:,} are taken for the model's, as no others in a row fit, "
            f"and {saved - count:,} beside them left out"
        )
    also = "" if not rivals else f" (tensors {rivals[0] + 1:,} to {rivals[0] + count:,} would fit, too)"
    return (
        f"{name}: the first {count:,} tensors are taken for the model's, as they fit, and {saved - count:,} behind "
        f"them left out{also}; a model that is not the first in its file, as behind an optimizer's momentum, has to be "
        "saved alone: eqx.tree_serialise_leaves(FILE, model)"
    )


def _in_order(expected: Mapping[str, Described], checkpoint: Path) -> dict[str, Described]:
    """Returns the tensors of a file without names by the expected names, and by numbers where there are more."""
    with open_checkpoint(checkpoint) as saved:
        others = (f"tensor {number}" for number in range(len(expected) + 1, len(saved) + 1))
        return dict(zip((*expected, *others), saved.values(), strict=False))
