"""`count_notes` tells of counts that the model's library reads otherwise than the one that saved them.

PyTorch counts the batches that a batch norm has seen, and divides its running statistics by nothing. Equinox' begin at
zero, and are divided by one minus the momentum to the power of its own count where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradscope.naming import printable
from gradscope.tracing.data.checkpoint_files import SavedTensor
from gradscope.tracing.data.variable_names import Matches, components

#: The last words of the counts of PyTorch and of Equinox.
_OF_PYTORCH: Final = "num_batches_tracked"
_OF_EQUINOX: Final = "batch_counter"


def count_notes(
    paths: Sequence[str], found: Matches, tensors: Mapping[str, SavedTensor], arrays: Sequence[Any]
) -> Iterator[str]:
    """Yields the sentence that names the counts by which running statistics are divided that were not saved for that.

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
        more = f" and {len(counts) - 1:,} more" if len(counts) > 1 else ""
        yield (
            f"{name} is read as {path}{more}: Equinox divides running statistics by a power of its count, and those of "
            "PyTorch are divided by nothing, so that evaluation needs a count of 0"
        )
