"""`file_hint` says what to do about a checkpoint that renaming does not help: another file is named or written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gradscope.naming import printable
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.renaming.replicas import replicas_hint
from gradscope.tracing.data.variable_names import has_optimizer_alone

#: How the names of files end that are parts of a checkpoint, but for the suffix.
_PART: Final = re.compile(r".*-\d{5}-of-\d{5}")
#: What `numpy.savez` calls arrays without names.
_NUMBERED: Final = re.compile(r"arr_\d+")
#: Python that gives the leaves of a tree their names.
_BY_NAME: Final = "{jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in %s}"


def file_hint(path: Path, saved: Mapping[str, SavedTensor]) -> str | None:
    """Returns what to do about a file; None where its tensors may be the model's under other names.

    Args:
        path: The file.
        saved: Its tensors by name.
    """
    if _PART.fullmatch(path.stem):
        return f"it is one of several parts: name the folder that they are in: {printable(str(path.parent))}"
    if (copies := replicas_hint(saved)) is not None:
        return copies
    if has_optimizer_alone(saved):
        return "it has an optimizer's state alone: save the model's variables, too, or name the file that has them"
    if saved and all(map(_NUMBERED.fullmatch, saved)):
        tree = _BY_NAME % "jax.tree_util.tree_leaves_with_path(TREE)"
        return (
            "numpy.savez numbers the arrays that it receives without names: save them by name, in Python: "
            f"import jax, numpy; numpy.savez({str(path)!r}, **{tree})"
        )
    return _leaves_hint(path) if path.suffix == ".eqx" else None


def quantised_hint(paths: Sequence[str]) -> str:
    """Returns what to do about variables with fractions of which a file has whole numbers."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    which = f"{printable(paths[0])}{more}"
    return f"{which} may be quantised there: write their numbers times their scales, as floating-point numbers"


def _leaves_hint(path: Path) -> str:
    leaves = _BY_NAME % "jax.tree_util.tree_leaves_with_path(equinox.filter(model, equinox.is_array))"
    return (
        "the tensors of an .eqx file have no names, so that only its own model reads it; for another, write them as "
        f".npz, in Python: import equinox, jax, numpy; model = equinox.tree_deserialise_leaves({str(path)!r}, MODEL); "
        f"numpy.savez({str(path.with_suffix('.npz'))!r}, **{leaves})"
    )
