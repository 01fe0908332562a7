"""Where a model's variables and batch come from: checkpoints and input pipelines on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.command import Finished, gradscope

MODEL = """
import jax
import jax.numpy as jnp


def init(key):
    return {"layer": {"w": jax.random.normal(key, (2, 1)), "b": jnp.zeros((1, 1))}}


def batch(key, size):
    return {"x": jax.random.normal(key, (size, 2))}


def loss(variables, batch):
    with jax.named_scope("layer"):
        return ((batch["x"] @ variables["layer"]["w"] + variables["layer"]["b"]) ** 2).mean()
"""

PIPELINE = """
import numpy as np


def batches(count=3):
    for number in range(count):
        yield {"x": np.full((4, 2), number, np.float32)}


def broken():
    raise OSError("no such bucket")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.py").write_text(PIPELINE)
    np.savez(
        tmp_path / "saved.npz", **{"net.w": np.array([[1.5], [2]], np.float32), "net.b": np.ones((1, 1), np.float32)}
    )
    (tmp_path / "names.txt").write_text(r"^net\. -> layer/")
    return tmp_path


def dump(folder: Path, *options: object) -> Finished:
    return gradscope("dump", "model.py", "--force", "--json", *options, folder=folder)


@pytest.mark.slow
def test_a_checkpoint_takes_the_place_of_init(folder: Path) -> None:
    command = dump(folder, "--checkpoint", "saved.npz", "--map-keys", "names.txt")
    assert command.status == 0, command.errors
    assert command.json["provenance"]["checkpoint"] == "saved.npz"
    with np.load(folder / "model.npz") as members:
        assert np.array_equal(members["param/layer/w"], [[1.5], [2]])
        assert np.array_equal(members["param/layer/b"], [[1]])


@pytest.mark.slow
def test_a_dump_is_a_checkpoint_of_the_model_that_made_it(folder: Path) -> None:
    assert dump(folder, "--seed", 1).status == 0
    (folder / "model.npz").rename(folder / "first.npz")
    assert dump(folder, "--checkpoint", "first.npz").status == 0
    first, again = np.load(folder / "first.npz"), np.load(folder / "model.npz")
    assert np.array_equal(first["param/layer/w"], again["param/layer/w"])


def test_a_checkpoint_that_does_not_fit_is_refused_with_every_reason(folder: Path) -> None:
    command = dump(folder, "--checkpoint", "saved.npz")
    assert command.status == 3
    for said in (
        "it lacks layer/b float32[1, 1]",
        "the model has no net.b float32[1, 1], net.w float32[2, 1]",
        "--map-keys",
    ):
        assert said in command.errors


@pytest.mark.slow
def test_the_nth_batch_of_a_pipeline(folder: Path) -> None:
    command = dump(folder, "--data", "data.py:batches", "--batch-index", 2)
    assert command.status == 0, command.errors
    facts = command.json["provenance"]
    assert (facts["batch_size"], facts["data"], facts["batch_index"]) == (4, "data.py:batches", 2)
    (row,) = (row for row in command.json["rows"] if row["family"] == "input")
    assert (row["dtype"], row["shape"], row["min"], row["max"]) == ("float32", [4, 2], 2, 2)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--data", "data.py:batches", "--batch-index", 7), 2, "ends before batch 7"),
        (("--data", "data.py:broken"), 4, "no such bucket"),
        (("--batch-index", 1), 2, "--batch-index without --data has no meaning"),
        (("--map-keys", "names.txt"), 2, "--map-keys without --checkpoint has no meaning"),
    ],
)
def test_wrong_sources_are_reported_with_their_status(
    options: tuple[object, ...], status: int, said: str, folder: Path
) -> None:
    command = dump(folder, *options)
    assert (command.status, command.output) == (status, ""), command.errors
    assert said in command.errors


@pytest.mark.slow
def test_a_file_without_a_batch_takes_the_files(folder: Path) -> None:
    model = MODEL.replace("def batch(key, size):", "def unused(key, size):").replace('batch["x"]', 'batch["in"]["x"]')
    (folder / "without.py").write_text(model)
    x = np.linspace(-1.0, 1.0, 10).reshape(5, 2)
    np.savez(folder / "real.npz", **{"in/x": x})
    done = gradscope("dump", "without.py", "--data", "real.npz", "-o", "own.npz", folder=folder)
    assert done.status == 0, done.errors
    with np.load(folder / "own.npz") as arrays:
        w, b = arrays["param/layer/w"], arrays["param/layer/b"]
        np.testing.assert_array_equal(arrays["input/in/x"], x.astype(np.float32))
        np.testing.assert_allclose(arrays["param_grad/layer/w"], 2 * x.T @ (x @ w + b) / 5, rtol=1e-5, atol=1e-6)
