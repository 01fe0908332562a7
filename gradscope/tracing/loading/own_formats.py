"""Checkpoints in a framework's own format, read by the framework into the user's own module.

Equinox's `.eqx` has an order and no names, Keras' `.keras` and `.weights.h5` a layout of Keras' own: only the module
makes sense of either. What does not fit is told at once, by path, before the framework stops at the first of it. Flax's
formats name their tensors, and are read like any other file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from gradscope.errors import DumpError
from gradscope.frameworks.detect import own_format_of
from gradscope.frameworks.modules.own_format import Described
from gradscope.naming import printable
from gradscope.tracing.data.checkpoint_files import open_checkpoint
from gradscope.tracing.data.mismatches import disagreements

#: What the frameworks raise about a file that does not fit.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile)


def restored(found: Any, checkpoint: Path, build: Callable[[], object]) -> Any | None:
    """A module that holds what a checkpoint does.

    Args:
        found: The module; Keras changes it, Equinox makes another.
        checkpoint: The file.
        build: Has a module make its variables that has not made them.

    Returns:
        The module; None where its framework has no format of its own with that suffix.

    Raises:
        DumpError: The file is missing or damaged, or of another module; the message lists every disagreement.
    """
    own = own_format_of(found, checkpoint)
    if own is None:
        return None
    if not own.built:
        build()
    try:
        expected, named = own.layouts()
        saved = _in_order(expected, checkpoint) if named is None else named
        problems = list(disagreements(expected, saved, exact=own.exact))
        if not problems:
            return own.restore()
    except _REFUSALS as error:
        problems = [str(error)]
    raise DumpError(f"{printable(str(checkpoint))} is no checkpoint of this module: {'; '.join(problems)}")


def _in_order(expected: Mapping[str, Described], checkpoint: Path) -> dict[str, Described]:
    """The tensors of a file that has no names by those that are expected, and by numbers where there are more."""
    with open_checkpoint(checkpoint) as saved:
        beyond = (f"tensor {number}" for number in range(len(expected), len(saved)))
        return dict(zip((*expected, *beyond), saved.values(), strict=False))
