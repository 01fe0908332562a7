"""Dumps of very many small tensors, under the same names or others, and large files that NumPy wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.writer import DumpWriter
from gradscope.stats import tensor_stats

#: Tensors in each foreign file.
_MEMBERS = 4


def write_dump(path: Path, count: int, *, name: Callable[[int], str], equal: bool = False) -> None:
    """Writes a dump of `count` tensors of 16 elements, with the statistics of the full tier.

    Args:
        path: The dump.
        count: The number of tensors: parameters, their gradients and activations in turn.
        name: Returns the name of a tensor by its number.
        equal: Whether all tensors are parameters that are zero, instead of random.
    """
    random = np.random.default_rng(0)
    with DumpWriter(path) as writer:
        for number in range(count):
            array = np.zeros(16, np.float32) if equal else random.standard_normal(16, np.float32)
            writer.add(
                Record(
                    family="param" if equal else ("param", "param_grad", "activation")[number % 3],
                    name=name(number),
                    shape=array.shape,
                    dtype="float32",
                    array=array,
                    stats=tensor_stats(array).to_json(),
                    site=SiteFacts(index=number, source="model.py:4"),
                )
            )
        writer.commit(RunFacts(loss=1.0))


def write_unrelated(path: Path, count: int, *, name: Callable[[int], str], seed: int) -> None:
    """Writes an `.npz` of random kernels of four shapes, of which some could be packed in others by their shapes.

    Args:
        path: The file.
        count: The number of kernels.
        name: Returns the name of a kernel by its number.
        seed: What their values are drawn with.
    """
    random = np.random.default_rng(seed)
    shapes = (4, 8), (8, 8), (8, 16), (2, 2)
    arrays: dict[str, Any] = {
        f"param/{name(number)}": random.standard_normal(shapes[number % len(shapes)], np.float32)
        for number in range(count)
    }
    np.savez(path, **arrays)


def write_foreign(path: Path, mebibytes: int) -> None:
    """Writes an `.npz` of so many MiB of random float32 with NumPy."""
    random = np.random.default_rng(0)
    rows = mebibytes * 2**20 // 4 // _MEMBERS // 1024
    arrays: dict[str, Any] = {
        f"w{number}": random.standard_normal((rows, 1024), np.float32) for number in range(_MEMBERS)
    }
    np.savez(path, **arrays)
