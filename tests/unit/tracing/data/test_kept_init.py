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


def load(path: Path, saved: dict[str, np.ndarray], *keep: str) -> Checkpoint:
    np.savez(path / "saved.npz", **saved)
    request = CheckpointRequest(path=path / "saved.npz", keep_init=tuple(map(Pattern.parse, keep)))
    return variables_from_file(request, jax.eval_shape(lambda: MADE), lambda: MADE)


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


def test_what_is_lacking_beside_it_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"it lacks params/head/bias"):
        load(tmp_path, BACKBONE, "head/kernel")


@pytest.mark.parametrize(
    ("pattern", "message"), [("hed/*", "'hed/\\*' selects nothing"), ("*", "names every variable, and nothing is read")]
)
def test_a_pattern_names_some_variables_and_not_all(pattern: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, BACKBONE, pattern)
