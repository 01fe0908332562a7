"""Data shapes: what real data say about the inputs of a module whose inputs nobody has described."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import storable
from gradscope.dump.reader import open_dump
from gradscope.frameworks.modules.input_spec import InputSpec


def data_shapes(path: Path) -> dict[str, InputSpec]:
    """The tensors of a file by name, in its order.

    Args:
        path: A file as `--data` takes it: an `.npz`, an `.npy`, a dump.

    Raises:
        DumpError: The file cannot be read.
    """
    with open_dump(path) as file:
        entries = [entry for entry in file.manifest.entries if entry.family in (naming.TENSOR, naming.INPUT)]
        return {entry.name: InputSpec.of(entry.dtype, entry.shape) for entry in entries}


def array_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, InputSpec]:
    """The arrays of a batch by name, in its order; those of no numbers, which no module takes, left out."""
    numbers = {name: array for name, array in arrays.items() if storable(array.dtype.name)}
    return {name: InputSpec.of(array.dtype.name, array.shape) for name, array in numbers.items()}
