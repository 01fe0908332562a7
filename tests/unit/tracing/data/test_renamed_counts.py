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


#: What Haiku's batch norm has: sums and counts beside each average.
HAIKU = {
    "params": {"net/norm": {"scale": np.zeros((1, 1, 1, 3), np.float32)}},
    "state": {
        f"net/norm/~/{name}_ema": {
            "average": np.zeros((1, 1, 1, 3), np.float32),
            "counter": np.int32(0),
            "hidden": np.zeros((1, 1, 1, 3), np.float32),
        }
        for name in ("mean", "var")
    },
}


@pytest.mark.parametrize("statistics", ["norm.running_mean norm.running_var", "state/norm/mean state/norm/var"])
def test_the_lines_proposed_for_haikus_batch_norm_read_the_averages(statistics: str, tmp_path: Path) -> None:
    mean, var = statistics.split()
    saved = {"norm.weight": np.full(3, 2.0), mean: np.arange(3.0), var: np.arange(3.0) + 1}
    np.savez(tmp_path / "saved.npz", **{name: each.astype(np.float32) for name, each in saved.items()})
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), HAIKU)

    def loaded(lines: list[str]) -> Checkpoint:
        (tmp_path / "names.txt").write_text("\n".join(lines))
        request = CheckpointRequest(path=tmp_path / "saved.npz", key_map=read_key_map(tmp_path / "names.txt"))
        return variables_from_file(request, expected, lambda: HAIKU)

    with pytest.raises(DumpError) as refused:
        loaded([])
    hint = str(refused.value.hint)
    assert "hidden" not in hint
    found = loaded([line.strip() for line in hint.splitlines() if line.startswith("  ^")])
    state = found.variables["state"]
    for name, values in (("mean", saved[mean]), ("var", saved[var])):
        ema = state[f"net/norm/~/{name}_ema"]
        np.testing.assert_array_equal(ema["average"].ravel(), values)
        assert not np.any(ema["hidden"])
        assert ema["counter"] == 0
    (note,) = [note for note in found.notes if "as init makes them" in note]
    assert note.startswith("state/net/norm/~/mean_ema/counter and 3 more are as init makes them: Haiku makes")


def test_a_state_of_haikus_own_that_lacks_a_count_is_refused(tmp_path: Path) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(HAIKU)
    saved = {jax.tree_util.keystr(path, simple=True, separator="/"): each for path, each in leaves}
    del saved["state/net/norm/~/var_ema/counter"]
    np.savez(tmp_path / "saved.npz", **saved)
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), HAIKU)
    with pytest.raises(DumpError, match="it lacks state/net/norm/~/var_ema/counter"):
        variables_from_file(CheckpointRequest(path=tmp_path / "saved.npz"), expected, lambda: HAIKU)
