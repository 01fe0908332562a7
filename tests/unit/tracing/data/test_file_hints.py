"""What is said of a file that no renaming makes a model's: which file to name, or how to write one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.errors import DumpError
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest

VALUES = {"head": {"bias": np.arange(3, dtype=np.float32), "kernel": np.ones((2, 3), np.float32)}}


def load(path: Path) -> Checkpoint:
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), VALUES)
    return variables_from_file(CheckpointRequest(path=path), expected, dict)


def hint_of(path: Path, **saved: Any) -> str:
    np.savez(path, **saved)
    with pytest.raises(DumpError) as refused:
        load(path)
    return str(refused.value.hint)


def test_of_one_of_several_parts_the_folder_is_named(tmp_path: Path) -> None:
    for number, name in enumerate(VALUES["head"], 1):
        part = {f"head/{name}": VALUES["head"][name]}
        np.savez(tmp_path / f"model-0000{number}-of-00002.npz", **part)
    hint = hint_of(tmp_path / "model-00001-of-00002.npz", **{"head/bias": VALUES["head"]["bias"]})
    assert hint == f"it is one of several parts: name the folder that they are in: {tmp_path}"
    assert load(tmp_path).notes == ()


def test_numbers_of_arrays_without_names_are_no_names(tmp_path: Path) -> None:
    hint = hint_of(tmp_path / "saved.npz", arr_0=VALUES["head"]["bias"], arr_1=VALUES["head"]["kernel"])
    assert "arr_0" not in hint
    exec(hint.partition("in Python: ")[2].replace("TREE", "VALUES"), {"VALUES": VALUES})
    assert load(tmp_path / "saved.npz").notes == ()


def test_quantised_numbers_are_not_said_to_be_a_new_head(tmp_path: Path) -> None:
    saved = {"head/bias": VALUES["head"]["bias"], "head/kernel": VALUES["head"]["kernel"].astype(np.int8)}
    hint = hint_of(tmp_path / "saved.npz", **saved, **{"head/kernel_scale": np.ones(3, np.float32)})
    assert hint.startswith("head/kernel may be quantised there: write their numbers times their scales")


def test_of_small_floats_it_is_said_what_converts_them(tmp_path: Path) -> None:
    float8 = jax.numpy.float8_e4m3fn
    saved = {"head/bias": VALUES["head"]["bias"], "head/kernel": VALUES["head"]["kernel"].astype(float8)}
    serialization = pytest.importorskip("flax.serialization", reason="Flax is absent: its float8 was NOT read")
    (tmp_path / "saved.msgpack").write_bytes(serialization.msgpack_serialize(saved))
    (note,) = load(tmp_path / "saved.msgpack").notes
    assert note.endswith("1 of float8_e4m3fn, where init makes float32; --dtype float32 converts them")
