"""Checkpoints in a framework's own format, read by the framework into the user's own module.

Equinox's `.eqx` has an order and no names, Keras' `.weights.h5` a layout of Keras' own: only the module makes sense of
either. Flax's formats name their tensors, and are read like any other file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gradscope.errors import DumpError
from gradscope.frameworks.detect import lifted
from gradscope.naming import printable

#: What the frameworks raise about a file that does not fit.
_REFUSALS = (RuntimeError, ValueError, TypeError, OSError, EOFError)


def restored(found: Any, checkpoint: Path) -> Any | None:
    """A module that holds what a checkpoint does.

    Args:
        found: The module; Keras changes it, Equinox makes another.
        checkpoint: The file.

    Returns:
        The module; None where its framework has no format of its own with that suffix.

    Raises:
        DumpError: The file is missing or damaged, or of another module.
    """
    equinox, keras = sys.modules.get("equinox"), sys.modules.get("keras")
    try:
        if equinox is not None and checkpoint.suffix == ".eqx" and lifted(found) is not None:
            return equinox.tree_deserialise_leaves(checkpoint, found)
        if keras is not None and checkpoint.name.endswith(".weights.h5") and isinstance(found, keras.Model):
            found.load_weights(checkpoint)
            return found
    except _REFUSALS as error:
        raise DumpError(f"{printable(str(checkpoint))} is no checkpoint of this module: {error}") from error
    return None
