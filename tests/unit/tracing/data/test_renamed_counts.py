"""A count of PyTorch's that divides the running statistics of Equinox is told, and none is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.errors import DumpError
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
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


def test_a_count_of_equinox_is_that_of_init_where_the_file_has_those_of_pytorch(tmp_path: Path) -> None:
    saved: dict[str, Any] = {"bn.weight": np.ones(3, np.float32), "bn.num_batches_tracked": np.int32(7)}
    np.savez(tmp_path / "saved.npz", **saved)
    made = {"norm": {"weight": np.zeros(3, np.float32), "batch_counter": np.int32(0)}}
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), made)

    def loaded(rule: str) -> Checkpoint:
        (tmp_path / "names.txt").write_text(rule)
        request = CheckpointRequest(path=tmp_path / "saved.npz", key_map=read_key_map(tmp_path / "names.txt"))
        return variables_from_file(request, expected, lambda: made)

    with pytest.raises(DumpError) as refused:
        loaded("nothing -> ")
    assert "batch_counter" not in str(refused.value.hint)
    found = loaded(r"^bn\.weight$ -> norm/weight")
    assert found.variables["norm"]["batch_counter"] == 0
    assert any(note.startswith("norm/batch_counter is as init makes it: Equinox divides") for note in found.notes)
