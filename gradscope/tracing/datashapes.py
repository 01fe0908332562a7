"""Data shapes: what a data file says about the inputs of a module whose inputs nobody has described."""

from __future__ import annotations

from pathlib import Path

from gradscope import naming
from gradscope.dump.reader import open_dump
from gradscope.frameworks.inputspec import InputSpec


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
