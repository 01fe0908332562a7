"""A count of PyTorch's that divides the running statistics of Equinox is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.tracing.data.checkpoints import CheckpointRequest, variables_from_file
from gradscope.tracing.data.renaming.key_map import read_key_map


@pytest.mark.parametrize(
    ("name", "count", "told"),
    [("num_batches_tracked", 7, True), ("num_batches_tracked", 0, False), ("batch_counter", 7, False)],
)
def test_a_count_by_which_another_library_divides_is_told(name: str, count: int, told: bool, tmp_path: Path) -> None:
    saved: dict[str, Any] = {"norm.weight": np.ones(3, np.float32), f"norm.{name}": np.int32(count)}
    np.savez(tmp_path / "saved.npz", **saved)
    (tmp_path / "names.txt").write_text(r"^(.*)\.num_batches_tracked$ -> \1.batch_counter")
    request = CheckpointRequest(path=tmp_path / "saved.npz", key_map=read_key_map(tmp_path / "names.txt"))
    made = {"norm": {"weight": np.zeros(3, np.float32), "batch_counter": np.int32(0)}}
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), made)
    found = variables_from_file(request, expected, lambda: made)
    assert found.variables["norm"]["batch_counter"] == count
    notes = [note for note in found.notes if note.startswith("norm.num_batches_tracked is read as ")]
    assert len(notes) == told
    assert all(note.endswith("so that evaluation needs a count of 0") for note in notes)
