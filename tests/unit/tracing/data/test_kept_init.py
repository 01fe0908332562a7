"""Variables that `--keep-init` names stay as `init` makes them, and the message proposes it where the rest fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.errors import DumpError, UsageError
from gradscope.naming.selecting.patterns import Pattern
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest

BACKBONE = {f"backbone/block{at}/kernel": np.full((3, 3), at, np.float32) for at in range(3)}
MADE: dict[str, Any] = {
    "params": {
        "backbone": {f"block{at}": {"kernel": np.zeros((3, 3), np.float32)} for at in range(3)},
        "head": {"bias": np.full(5, 7, np.float32), "kernel": np.full((3, 5), 8, np.float32)},
    }
}
OTHER_HEAD = {"head/bias": np.ones(9, np.float32), "head/kernel": np.ones((3, 9), np.float32)}


def load(path: Path, saved: dict[str, np.ndarray], *keep: str, made: dict[str, Any] = MADE) -> Checkpoint:
    np.savez(path / "saved.npz", **saved)
    request = CheckpointRequest(path=path / "saved.npz", keep_init=tuple(map(Pattern.parse, keep)))
    return variables_from_file(request, jax.eval_shape(lambda: made), lambda: made)


@pytest.mark.parametrize("saved", [BACKBONE, BACKBONE | OTHER_HEAD], ids=["without a head", "with another head"])
@pytest.mark.parametrize("pattern", ["head/*", "param/head/*", "params/head/*", r"re:head/(bias|kernel)"])
def test_a_new_head_stays_as_init_makes_it(saved: dict[str, np.ndarray], pattern: str, tmp_path: Path) -> None:
    found = load(tmp_path, saved, pattern)
    params = found.variables["params"]
    assert [params["backbone"][f"block{at}"]["kernel"][0, 0] for at in range(3)] == [0, 1, 2]
    assert np.array_equal(params["head"]["bias"], MADE["params"]["head"]["bias"])
    assert np.array_equal(params["head"]["kernel"], MADE["params"]["head"]["kernel"])
    kept = "params/head/bias float32[5], params/head/kernel float32[3, 5]"
    assert found.notes[-1] == f"as init makes them (--keep-init): {kept}"
    assert any("2 other tensors left out" in note for note in found.notes) == (saved is not BACKBONE)


@pytest.mark.parametrize("saved", [BACKBONE, BACKBONE | OTHER_HEAD], ids=["without a head", "with another head"])
def test_the_message_proposes_it(saved: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(DumpError) as error:
        load(tmp_path, saved)
    assert "--keep-init 'params/head/*'" in str(error.value.hint)


def test_it_is_not_proposed_where_most_is_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as error:
        load(tmp_path, {"backbone/block1/kernel": np.ones((3, 3), np.float32)})
    assert "--keep-init" not in str(error.value.hint)


def test_running_statistics_may_be_missing_beside_a_kept_head(tmp_path: Path) -> None:
    made = {**MADE, "batch_stats": {"backbone": {"mean": np.full(3, 4, np.float32)}}}
    found = load(tmp_path, BACKBONE | OTHER_HEAD, "head/*", made=made)
    assert found.variables["batch_stats"]["backbone"]["mean"].tolist() == [4, 4, 4]
    assert "saved.npz has no batch_stats: its one tensor is as init makes them" in found.notes


def test_a_tensor_of_a_kept_variable_is_not_one_that_the_model_lacks(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as error:
        load(tmp_path, BACKBONE | OTHER_HEAD, "head/kernel")
    assert str(error.value).endswith("this model: params/head/bias has shape [9], expected [5]")
    assert error.value.hint == "others stay as init makes them with --keep-init params/head/bias, too"
    with pytest.raises(DumpError, match=r"of the 2 variables that are read it has none\n  params/head") as error:
        load(tmp_path, BACKBONE | OTHER_HEAD, "backbone/*")
    assert "the model has no" not in str(error.value)


def test_what_is_lacking_beside_it_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"it lacks params/head/bias"):
        load(tmp_path, BACKBONE, "head/kernel")


@pytest.mark.parametrize(
    ("pattern", "message"), [("hed/*", "'hed/\\*' selects nothing"), ("*", "names every variable, and nothing is read")]
)
def test_a_pattern_names_some_variables_and_not_all(pattern: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, BACKBONE, pattern)
