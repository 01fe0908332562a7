"""`count_notes` tells of counts that the model's library reads otherwise than the one that saved them.

PyTorch counts the batches that a batch norm has seen, and divides its running statistics by nothing. Equinox' begin at
zero, and are divided by one minus the momentum to the power of its own count where they are used. Running statistics of
PyTorch need a count of zero there, which `init` makes, and a file of PyTorch has no such count (`unsaved_counts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradscope.naming import printable
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.variable_names import Matches, components

#: The last words of the counts of PyTorch and of Equinox.
_OF_PYTORCH: Final = "num_batches_tracked"
_OF_EQUINOX: Final = "batch_counter"

_WHY: Final = "Equinox divides running statistics by a power of its count, and those of PyTorch are divided by nothing"


def unsaved_counts(lacking: Iterable[str], names: Collection[str]) -> frozenset[str]:
    """Returns the counts of Equinox among variables that a file lacks, where it has those of PyTorch.

    Args:
        lacking: The paths of the variables.
        names: The names of the file's tensors.
    """
    is_of_pytorch = any(components(name)[-1] == _OF_PYTORCH for name in names)
    return frozenset(path for path in lacking if is_of_pytorch and components(path)[-1] == _OF_EQUINOX)


def count_notes(
    paths: Sequence[str], found: Matches, tensors: Mapping[str, SavedTensor], arrays: Sequence[Any]
) -> Iterator[str]:
    """Yields sentences that name the counts by which running statistics are divided that were not saved for that.

    Args:
        paths: The paths of the variables.
        found: Where they are.
        tensors: The file's tensors.
        arrays: The values of the variables.
    """
    read = [
        (tensors[name].origin or name, path)
        for path, name, array in zip(paths, found.names, arrays, strict=True)
        if name is not None and components(path)[-1] == _OF_EQUINOX and np.any(array)
    ]
    counts = [(name, path) for name, path in read if components(name)[-1] == _OF_PYTORCH]
    if counts:
        name, path = map(printable, counts[0])
        yield f"{name} is read as {path}{_more(counts)}: {_WHY}, so that evaluation needs a count of 0"
    lacking = (path for path, name in zip(paths, found.names, strict=True) if name is None)
    if unsaved := sorted(unsaved_counts(lacking, tensors)):
        made = "are as init makes them" if len(unsaved) > 1 else "is as init makes it"
        yield f"{printable(unsaved[0])}{_more(unsaved)} {made}: {_WHY}"


def _more(all_of_them: Sequence[object]) -> str:
    return f" and {len(all_of_them) - 1:,} more" if len(all_of_them) > 1 else ""
