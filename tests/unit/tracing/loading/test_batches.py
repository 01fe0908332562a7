"""Batches from files and pipelines: leaves by name, any number of examples, and every disagreement told at once."""

from __future__ import annotations

import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from gradscope import naming
from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.writer import DumpWriter
from gradscope.errors import DumpError, ModelError, UsageError
from gradscope.tracing.data.files import file_bounds
from gradscope.tracing.data.files.checkpoint_files import open_checkpoint
from gradscope.tracing.data.single_tensors import tensor_from_file
from gradscope.tracing.loading.batches import DataRequest, FileBatch, batch_from_file


def leaf(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


EXPECTED = {"image": leaf(2, 4, 3), "label": leaf(2, dtype=jnp.int32)}


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def read(folder: Path, expected: Any, **members: np.ndarray) -> FileBatch:
    np.savez(folder / "batch.npz", **members)
    return batch_from_file(folder / "batch.npz", expected)


def problems(folder: Path, expected: Any, **members: np.ndarray) -> list[str]:
    with pytest.raises(DumpError) as refused:
        read(folder, expected, **members)
    start, _, listed = refused.value.message.partition(" is not a batch for this model: ")
    assert start == str(folder / "batch.npz")
    return listed.split("; ")


def test_members_become_leaves_and_decide_the_number_of_examples(tmp_path: Path) -> None:
    image, label = floats(5, 4, 3), np.arange(5, dtype=np.int32)
    found = read(tmp_path, EXPECTED, label=label, image=image)
    assert (found.size, found.notes) == (5, ())
    np.testing.assert_array_equal(found.batch["image"], image)
    np.testing.assert_array_equal(found.batch["label"], label)


def test_the_leaves_may_be_in_the_one_argument_that_a_loop_has_for_them(tmp_path: Path) -> None:
    image, label = floats(5, 4, 3), np.arange(5, dtype=np.int32)
    found = read(tmp_path, EXPECTED, **{"data/label": label, "data/image": image})
    np.testing.assert_array_equal(found.batch["image"], image)
    assert "it lacks label" in problems(tmp_path, EXPECTED, **{"data/label": label, "other/image": image})


def test_leaves_are_named_by_their_path_in_any_pytree(tmp_path: Path) -> None:
    expected = {"text": {"mask": leaf(1, 3)}, "pair": (leaf(1), leaf(1, 2)), "scale": leaf()}
    members = {"text/mask": floats(4, 3), "pair/0": floats(4), "pair/1": floats(4, 2), "scale": floats()}
    found = read(tmp_path, expected, **members)
    assert jax.tree_util.tree_structure(found.batch) == jax.tree_util.tree_structure(expected)
    np.testing.assert_array_equal(found.batch["pair"][1], members["pair/1"])
    assert found.size == 4


def test_a_npy_file_holds_the_only_leaf(tmp_path: Path) -> None:
    np.save(tmp_path / "anything.npy", floats(3, 2))
    for expected in (leaf(1, 2), {"x": leaf(1, 2)}):
        found = batch_from_file(tmp_path / "anything.npy", expected)
        np.testing.assert_array_equal(jax.tree_util.tree_leaves(found.batch)[0], floats(3, 2))
        assert found.size == 3


def test_the_inputs_of_a_dump_are_a_batch(tmp_path: Path) -> None:
    image = floats(2, 4, 3).astype(ml_dtypes.bfloat16)
    with DumpWriter(tmp_path / "run.npz") as writer:
        for family in (naming.INPUT, naming.INPUT_GRAD):
            writer.add(
                Record(
                    family=family,
                    name="image",
                    shape=image.shape,
                    dtype="bfloat16",
                    array=image,
                    stats={},
                    site=SiteFacts(index=0),
                )
            )
        writer.commit(RunFacts())
    found = batch_from_file(tmp_path / "run.npz", {"image": leaf(1, 4, 3, dtype=jnp.bfloat16)})
    assert found.batch["image"].dtype == ml_dtypes.bfloat16
    assert found.batch["image"].tobytes() == image.tobytes()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float64", "float32"),
        ("float32", "bfloat16"),
        ("int64", "int32"),
        ("uint8", "int32"),
        ("complex128", "complex64"),
    ],
)
def test_widths_are_converted_and_said_so(tmp_path: Path, given: str, expected: str) -> None:
    found = read(tmp_path, {"x": leaf(1, dtype=jnp.dtype(expected))}, x=np.array([1, 2, 3], given))
    assert found.batch["x"].dtype == jnp.dtype(expected)
    assert found.batch["x"].tolist() == [1, 2, 3]
    assert found.notes == (f"x was converted from {given} to {expected}",)


@pytest.mark.parametrize(
    ("given", "expected", "problem"),
    [
        ("float32", "int32", "x is floating-point (float32), expected integer (int32)"),
        ("int32", "float32", "x is integer (int32), expected floating-point (float32)"),
        ("bool", "float32", "x is boolean (bool), expected floating-point (float32)"),
        ("complex64", "float32", "x is complex (complex64), expected floating-point (float32)"),
        ("uint32", jax.random.key(0).dtype, "x is integer (uint32), expected key<fry> (key<fry>)"),
    ],
)
def test_a_change_of_kind_is_refused(tmp_path: Path, given: str, expected: Any, problem: str) -> None:
    assert problems(tmp_path, {"x": leaf(1, dtype=expected)}, x=np.ones(2, given)) == [problem]


def test_integers_that_would_change_are_refused(tmp_path: Path) -> None:
    expected = {"x": leaf(1, dtype=jnp.int8)}
    found = problems(tmp_path, expected, x=np.array([-1, 128], np.int64))
    assert found == ["x has values from -1 to 128, which int8 cannot represent"]
    assert read(tmp_path, expected, x=np.array([-128, 127], np.int64)).batch["x"].tolist() == [-128, 127]


def test_a_batch_has_an_example(tmp_path: Path) -> None:
    assert problems(tmp_path, EXPECTED, image=floats(0, 4, 3), label=np.zeros(0, np.int32)) == ["it has no examples"]


def test_everything_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    expected = {**EXPECTED, "mask": leaf(2, 4)}
    found = problems(tmp_path, expected, image=floats(5, 4, 1), label=floats(3), extra=floats(2))
    assert found == [
        "image has shape [5, 4, 1], expected [N, 4, 3]",
        "label is floating-point (float32), expected integer (int32)",
        "it lacks mask",
        "the model has no extra",
        "its leaves differ in their number of examples (image 5, label 3)",
    ]


def test_the_models_own_batch_is_the_hint(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as refused:
        read(tmp_path, EXPECTED, image=floats(2, 4, 3))
    assert refused.value.hint == "the model's own batch is image float32[2, 4, 3], label int32[2]"


def test_a_scalar_takes_no_part_in_the_number_of_examples(tmp_path: Path) -> None:
    assert problems(tmp_path, {"x": leaf()}, x=floats(3)) == ["x has shape [3], expected []"]
    assert problems(tmp_path, {"x": leaf(2)}, x=floats()) == ["x has shape [], expected [N]"]


def test_names_from_a_file_cannot_control_the_terminal(tmp_path: Path) -> None:
    found = problems(tmp_path, {"x": leaf(1)}, x=floats(1), **{"\x1b[2J": floats(1)})
    assert found == ["the model has no \\x1b[2J"]


def test_a_file_that_is_no_dump_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "batch.npz").write_text("no zip")
    with pytest.raises(DumpError):
        batch_from_file(tmp_path / "batch.npz", EXPECTED)


def test_a_safetensors_file_is_a_batch(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is absent: its files were NOT read")
    library.save_file({"x": floats(5, 2)}, str(tmp_path / "batch.safetensors"))
    found = batch_from_file(tmp_path / "batch.safetensors", {"x": leaf(1, 2)})
    np.testing.assert_array_equal(found.batch["x"], floats(5, 2))


PIPELINE = """
import numpy as np


def batches(count=3):
    for number in range(count):
        yield {"x": np.full((4, 2), number, np.float32)}


loader = [{"x": np.ones((5, 2), np.float64)}]
wrong = [{"y": np.ones((5, 3), np.float32)}]
number = 3


def broken():
    raise OSError("no such bucket")


def one():
    return {"x": np.ones((4, 2), np.float32)}


def loss(variables, batch):
    return 0.0


def seeded(seed):
    yield from batches(seed + 1)


def sized(*, size):
    return one()
"""


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])


@pytest.mark.usefixtures("pipelines")
@pytest.mark.parametrize(
    ("place", "index", "expected"),
    [
        ("data.py:batches", None, np.zeros((4, 2))),
        ("data.py:batches", 2, np.full((4, 2), 2)),
        ("data.py:batches(count=1)", 0, np.zeros((4, 2))),
        ("data.py:loader", None, np.ones((5, 2))),
    ],
)
def test_a_pipeline_is_an_iterable_or_a_function_that_returns_one(place: str, index: int | None, expected: Any) -> None:
    found = DataRequest(location=place, index=index).batch({"x": leaf(1, 2)})
    assert found.size == len(expected)
    assert found.batch["x"].dtype == np.float32
    np.testing.assert_array_equal(found.batch["x"], expected)


@pytest.mark.usefixtures("pipelines")
@pytest.mark.parametrize(
    ("place", "index", "error", "said"),
    [
        ("data.py:batches", 7, UsageError, "ends before batch 7"),
        ("data.py:number", None, UsageError, "is of type int, expected an iterable of batches"),
        ("data.py:nothing", None, UsageError, "has no 'nothing'"),
        ("data.py:wrong", None, DumpError, "it lacks x; the model has no y"),
        ("data.py:broken", None, ModelError, "no such bucket"),
        ("data.py:one", None, UsageError, "is of type dict, expected an iterable of batches"),
        ("data.py:loss", None, UsageError, "needs the arguments variables, batch, and a pipeline takes none, or the"),
        ("data.py:sized", None, UsageError, "needs the arguments size, and a pipeline takes none"),
        ("data.py:seeded", 2, UsageError, "takes the number of a batch, and returned a generator for 2"),
        ("data.npz", 1, UsageError, "has one batch"),
    ],
)
def test_a_pipeline_that_gives_no_batch_is_refused(place: str, index: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        DataRequest(location=place, index=index).batch({"x": leaf(1, 2)})


@pytest.mark.usefixtures("pipelines")
def test_a_generator_in_place_of_a_batch_is_answered_by_what_is_accepted() -> None:
    with pytest.raises(UsageError) as raised:
        DataRequest(location="data.py:seeded").batch({"x": leaf(1, 2)})
    assert raised.value.hint == (
        "give a function of no arguments that returns batches, or of a number that returns that batch; an argument of "
        "your own has a value, 'data.py:seeded(0)'"
    )
    assert DataRequest(location="data.py:seeded(3)").batch({"x": leaf(1, 2)}).size == 4


@pytest.mark.slow
def test_a_compressed_file_is_refused_by_what_it_states_before_it_is_inflated(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", image=np.zeros((16, 1 << 20), np.float32))
    tracemalloc.start()
    try:
        with pytest.raises(DumpError, match=r"image has shape \[16, 1048576\], expected \[N, 4, 3\]"):
            batch_from_file(tmp_path / "bomb.npz", EXPECTED)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_compressed_file_of_the_right_shapes_may_take_so_much_memory_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_bounds, "_MOST_BEYOND", 4 << 20)
    expected = {"image": leaf(2, 1024)}
    for examples, path in ((1024, tmp_path / "fits.npz"), (1100, tmp_path / "bomb.npz")):
        np.savez_compressed(path, image=np.zeros((examples, 1024), np.float32))
    assert batch_from_file(tmp_path / "fits.npz", expected).size == 1024
    np.savez(tmp_path / "plain.npz", image=np.zeros((1100, 1024), np.float32))
    assert batch_from_file(tmp_path / "plain.npz", expected).size == 1100
    said = r"bomb\.npz has 0 MiB, and its tensors would take 4 MiB of memory"
    tracemalloc.start()
    try:
        for read in (partial(batch_from_file, expected=expected), lambda path: tensor_from_file(str(path))):
            with pytest.raises(DumpError, match=said) as refused:
                read(tmp_path / "bomb.npz")
            assert refused.value.hint == "store it without compression: 4 MiB more than a file's own size are read"
        with pytest.raises(DumpError, match=said), open_checkpoint(tmp_path / "bomb.npz"):
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("classes", "hinted"), [(np.arange(5), True), (np.zeros((5, 3), np.int32), False)])
def test_numbers_of_classes_are_hinted_at(tmp_path: Path, classes: np.ndarray, hinted: bool) -> None:
    with pytest.raises(DumpError) as refused:
        read(tmp_path, {"labels": jax.ShapeDtypeStruct((2, 3), np.float32)}, labels=classes)
    assert ("--loss cross-entropy" in (refused.value.hint or "")) is hinted
