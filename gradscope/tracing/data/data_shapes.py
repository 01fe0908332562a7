"""Data shapes describe a batch by the tensors of real data, where the user has not described it otherwise.

They are the inputs of a module without `--input`, and the batch of a file of functions that has no `batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import storable
from gradscope.dump.reader import open_dump
from gradscope.frameworks.modules.input_spec import InputSpec


def data_shapes(path: Path) -> dict[str, InputSpec]:
    """Returns the tensors of a file by name, in its order.

    Args:
        path: A file for `--data`: an `.npz`, an `.npy`, a dump.

    Returns:
        Their dtypes and shapes.

    Raises:
        DumpError: The file cannot be read.
    """
    with open_dump(path) as file:
        entries = [entry for entry in file.manifest.entries if entry.family in (naming.TENSOR, naming.INPUT)]
        return {entry.name: InputSpec.of(entry.dtype, entry.shape) for entry in entries}


def array_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, InputSpec]:
    """Returns the arrays of a batch by name, in its order, without those that are not numbers."""
    numbers = {name: array for name, array in arrays.items() if storable(array.dtype.name)}
    return {name: InputSpec.of(array.dtype.name, array.shape) for name, array in numbers.items()}
