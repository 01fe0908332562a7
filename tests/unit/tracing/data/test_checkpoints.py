"""Checkpoints: each format gives the model back what was saved; what does not fit is told at once, by path."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from gradscope.errors import DumpError, GradscopeError, MachineError, UsageError
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.files import file_bounds
from gradscope.tracing.data.files.checkpoint_files import open_checkpoint
from gradscope.tracing.data.files.checkpoint_folders import choice_note
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.key_map import read_key_map
from gradscope.tracing.data.single_tensors import tensor_from_file
from tests.support.dumps import record, write
from tests.support.permissions import forbid

VARIABLES: dict[str, Any] = {
    "batch_stats": {"norm": {"mean": np.arange(3, dtype=np.float32)}},
    "params": {
        "head": {"bias": np.array(2.5, np.float32), "kernel": np.arange(6, dtype=np.float32).reshape(3, 2)},
        "half": np.array([1.5, -0.0, 3e38], ml_dtypes.bfloat16),
    },
}
NAMES = {"batch_stats/norm/mean", "params/head/bias", "params/head/kernel", "params/half"}


def flat(separator: str = "/") -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(VARIABLES)
    return {jax.tree_util.keystr(path, simple=True, separator=separator): leaf for path, leaf in leaves}


def shapes(tree: Any = VARIABLES) -> Any:
    return jax.eval_shape(lambda: tree)


def load(path: Path, *lines: str, expected: Any = None, init: Callable[[], Any] = dict) -> Checkpoint:
    rules = path.with_suffix(".map")
    rules.write_text("\n".join(lines))
    request = CheckpointRequest(path=path, key_map=read_key_map(rules))
    return variables_from_file(request, shapes() if expected is None else expected, init)


def assert_restored(found: Checkpoint) -> None:
    assert jax.tree_util.tree_structure(found.variables) == jax.tree_util.tree_structure(VARIABLES)
    for one, other in zip(jax.tree.leaves(found.variables), jax.tree.leaves(VARIABLES), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert found.notes == ()


def npz(path: Path) -> Path:
    np.savez(path / "saved.npz", **flat())
    return path / "saved.npz"


def npz_without_collections(path: Path) -> Path:
    np.savez(path / "saved.npz", **{name.removeprefix("params/"): array for name, array in flat().items()})
    return path / "saved.npz"


def a_dump(path: Path) -> Path:
    records = [
        record("batch_stats/norm/mean", flat()["batch_stats/norm/mean"], family="state"),
        *(record(n.removeprefix("params/"), a, family="param") for n, a in flat().items() if n.startswith("params/")),
        record("dense", np.ones(3)),
    ]
    return write(path / "saved.npz", records)


def safetensors(path: Path) -> Path:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is absent: its files were NOT read back")
    library.save_file(flat("."), str(path / "saved.safetensors"))
    return path / "saved.safetensors"


def flax_msgpack(path: Path) -> Path:
    library = pytest.importorskip("flax.serialization", reason="Flax is absent: its checkpoints were NOT read back")
    (path / "saved.msgpack").write_bytes(library.msgpack_serialize(VARIABLES))
    return path / "saved.msgpack"


def equinox(path: Path) -> Path:
    library = pytest.importorskip("equinox", reason="Equinox is absent: its checkpoints were NOT read back")
    library.tree_serialise_leaves(path / "saved.eqx", VARIABLES)
    return path / "saved.eqx"


def orbax(path: Path) -> Path:
    library = pytest.importorskip("orbax.checkpoint", reason="Orbax is absent: its checkpoints were NOT read back")
    with library.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "saved", jax.tree.map(np.asarray, VARIABLES))
    return path / "saved"


CONFIG = {"learning_rate": 0.1, "optimizer": "adam"}


def flax_msgpack_with_text(path: Path) -> Path:
    library = pytest.importorskip("flax.serialization", reason="Flax is absent: its checkpoints were NOT read back")
    (path / "saved.msgpack").write_bytes(library.msgpack_serialize({"model": VARIABLES, "config": CONFIG}))
    return path / "saved.msgpack"


def orbax_with_text(path: Path) -> Path:
    library = pytest.importorskip("orbax.checkpoint", reason="Orbax is absent: its checkpoints were NOT read back")
    with library.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path / "saved", {"model": jax.tree.map(np.asarray, VARIABLES), "config": CONFIG})
    return path / "saved"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("save", [flax_msgpack_with_text, orbax_with_text])
def test_text_beside_the_variables_is_no_tensor(save: Callable[[Path], Path], tmp_path: Path) -> None:
    path = save(tmp_path)
    found = load(path)
    assert len(found.notes) == 1
    assert_restored(replace(found, notes=()))
    with open_checkpoint(path) as tensors:
        assert [name for name in tensors if name.startswith("config")] == ["config/learning_rate"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("save", [npz, npz_without_collections, a_dump, safetensors, flax_msgpack, equinox, orbax])
def test_saved_variables_are_restored_bfloat16_included(save: Callable[[Path], Path], tmp_path: Path) -> None:
    assert_restored(load(save(tmp_path)))


def test_everything_that_does_not_fit_is_reported_at_once(tmp_path: Path) -> None:
    wrong = flat() | {"params/head/kernel": np.ones((2, 4), np.float32), "params/half": np.ones(3, np.int32)}
    wrong["opt/step"] = np.zeros((), np.int32)
    del wrong["batch_stats/norm/mean"]
    np.savez(tmp_path / "saved.npz", **wrong)
    with pytest.raises(DumpError) as refused:
        load(tmp_path / "saved.npz")
    for problem in (
        "it lacks batch_stats/norm/mean float32[3]",
        "params/head/kernel has shape [2, 4], expected [3, 2]",
        "params/half is int32, expected bfloat16",
        "the model has no opt/step int32[]",
    ):
        assert problem in refused.value.message
    assert refused.value.hint is not None
    assert "--map-keys" in refused.value.hint


def test_names_may_be_paths_of_keys_as_python_writes_them(tmp_path: Path) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(VARIABLES)
    for spelled in (jax.tree_util.keystr, lambda path: str(tuple(each.key for each in path))):
        np.savez(tmp_path / "saved.npz", **{spelled(path): leaf for path, leaf in leaves})
        assert_restored(load(tmp_path / "saved.npz"))


@pytest.mark.parametrize("rest", [[], ["opt_state/0/mu/params/half", "opt_state/0/nu/mean", "step"]])
def test_a_file_of_parameters_alone_is_taken_and_says_what_is_as_init_makes_it(tmp_path: Path, rest: list[str]) -> None:
    saved = {name: array for name, array in flat().items() if name.startswith("params/")}
    saved |= {name: np.zeros(() if name == "step" else 3, np.float32) for name in rest}
    np.savez(tmp_path / "saved.npz", **saved)
    found = load(tmp_path / "saved.npz", init=lambda: jax.tree.map(np.zeros_like, VARIABLES))
    np.testing.assert_array_equal(found.variables["params"]["head"]["kernel"], VARIABLES["params"]["head"]["kernel"])
    assert not found.variables["batch_stats"]["norm"]["mean"].any()
    assert found.notes[-1] == "saved.npz has no batch_stats: its one tensor is as init makes them"


@pytest.mark.parametrize(("rest", "has"), [([], "no"), (["opt_state/1/trace/half", "opt_state/1/count"], "another")])
def test_the_state_of_another_optimizer_is_not_said_to_lack(rest: list[str], has: str, tmp_path: Path) -> None:
    tree = {**VARIABLES, "opt_state": [np.zeros(3, np.float32), np.zeros((3, 2), np.float32)]}
    np.savez(tmp_path / "saved.npz", **flat(), **{name: np.ones(3, np.float32) for name in rest})
    found = load(tmp_path / "saved.npz", expected=shapes(tree), init=lambda: tree)
    whose = {"no": "its", "another": "the model's"}[has]
    assert found.notes[-1] == f"saved.npz has {has} opt_state: {whose} 2 tensors are as init makes them"
    assert len(found.notes) == (2 if rest else 1)
    assert not any(each.any() for each in found.variables["opt_state"])


@pytest.mark.parametrize("changed", ["norm/running_mean", "params/half"])
def test_what_else_a_file_has_or_lacks_is_not_taken_for_parameters_alone(tmp_path: Path, changed: str) -> None:
    saved = {name: array for name, array in flat().items() if name.startswith("params/")}
    if changed in saved:
        del saved[changed]
    else:
        saved[changed] = np.zeros(3, np.float32)  # as PyTorch names it
    np.savez(tmp_path / "saved.npz", **saved)
    with pytest.raises(DumpError, match="it lacks batch_stats/norm/mean"):
        load(tmp_path / "saved.npz")


@pytest.mark.parametrize(
    ("shape", "needed", "fits"),
    [
        ((8,), (8, 1, 1), True),
        ((1, 4, 8), (4, 8), True),
        ((1,), (), True),
        ((8, 8, 1), (8, 8), False),
        ((8,), (4, 2), False),
    ],
)
def test_axes_of_size_one_are_no_difference_where_the_order_is_proved(
    shape: tuple[int, ...], needed: tuple[int, ...], fits: bool, tmp_path: Path
) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    np.savez(tmp_path / "saved.npz", **{"params/b": values, "params/w": np.ones(2, np.float32)})
    expected = {"params": {"b": jax.ShapeDtypeStruct(needed, np.float32), "w": jax.ShapeDtypeStruct((2,), np.float32)}}
    if not fits:
        with pytest.raises(DumpError, match=r"params/b has shape \["):
            load(tmp_path / "saved.npz", expected=expected)
        return
    found = load(tmp_path / "saved.npz", expected=expected)
    np.testing.assert_array_equal(found.variables["params"]["b"], values.reshape(needed))
    assert found.notes == ("axes of size one added or left out: params/b",)


def test_a_checkpoint_of_another_model_is_said_to_be_that(tmp_path: Path) -> None:
    others = {f"dense{layer}/{name}": np.ones((9, 9), np.float32) for layer in range(3) for name in ("w", "b")}
    np.savez(tmp_path / "saved.npz", **others)
    with pytest.raises(DumpError) as refused:
        load(tmp_path / "saved.npz")
    first, *lines = refused.value.message.splitlines()
    count = len(jax.tree.leaves(VARIABLES))
    assert first.endswith(
        f"is of another model, or has other names: of the {count} variables of this model it has none"
    )
    assert [line.split()[:3] for line in lines] == [["it", "lacks", lines[0].split()[2]], ["the", "model", "has"]]
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("name the model that it is of; where only the names differ, --map-keys")


def test_a_checkpoint_of_other_numbers_is_not_said_to_be_of_another_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "saved.npz", **{name: np.zeros(array.shape, np.int32) for name, array in flat().items()})
    with pytest.raises(DumpError) as refused:
        load(tmp_path / "saved.npz")
    first = refused.value.message.splitlines()[0]
    assert "is not a checkpoint of this model: " in first
    assert "params/head/kernel is int32, expected float32" in first


def test_several_places_without_any_variable_are_no_choice(tmp_path: Path) -> None:
    names = [each.rpartition("/")[2] for each in flat()]
    np.savez(tmp_path / "saved.npz", **{f"{at}/{name}": np.ones((7, 7)) for at in ("one", "two") for name in names})
    with pytest.raises(DumpError, match="is of another model"):
        load(tmp_path / "saved.npz")


def test_names_are_mapped_by_rules_one_after_the_other(tmp_path: Path) -> None:
    theirs = {name.replace("params/", "module.").replace("/", "."): array for name, array in flat().items()}
    np.savez(tmp_path / "saved.npz", **theirs, **{"optimizer.step": np.zeros(3)})
    rules = ("# theirs -> ours", r"^module\. -> params.", "", r"\. -> /", "^optimizer.* ->")
    assert_restored(load(tmp_path / "saved.npz", *rules))


def test_two_tensors_are_not_renamed_to_one_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "saved.npz", a=np.ones(3), b=np.ones(3))
    with pytest.raises(DumpError, match="renames several tensors to c"):
        load(tmp_path / "saved.npz", "a|b -> c", expected=shapes({"c": np.ones(3)}))


@pytest.mark.parametrize("line", ["( -> x", r"a -> \2", "no arrow"])
def test_a_line_that_is_no_rule_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"saved.map:2: .* is not a rule"):
        load(npz(tmp_path), "# two lines", line)


def test_a_tensor_keeps_the_dtype_it_was_saved_in_and_that_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "saved.npz", w=np.ones(3, ml_dtypes.bfloat16), b=np.ones(3, np.float64))
    found = load(tmp_path / "saved.npz", expected=shapes({"w": np.ones(3, np.float32), "b": np.ones(3, np.float32)}))
    assert found.variables["w"].dtype == ml_dtypes.bfloat16
    assert found.notes == ("kept as in the checkpoint: 1 of bfloat16, where init makes float32",)


def test_a_file_of_torch_is_known_whatever_it_is_called(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "best.tar", "w") as archive:
        archive.writestr("best/data.pkl", b"")
    (tmp_path / "older").write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
    for name in ("best.tar", "older"):
        with pytest.raises(DumpError, match="PyTorch's file is a pickle") as refused, open_checkpoint(tmp_path / name):
            pass
        assert f"torch.load('{tmp_path / name}', map_location='cpu', weights_only=True)" in str(refused.value.hint)


@pytest.mark.parametrize("saved", ["all of a run", "tensors", "a module"])
def test_the_lines_for_a_file_of_torch_write_its_tensors(saved: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is absent: its files were NOT rewritten")
    pytest.importorskip("safetensors.torch", reason="safetensors is absent: files of torch were NOT rewritten")
    module = torch.nn.Linear(3, 2)
    tied = module.weight.T  # neither contiguous, nor apart from another
    state = {"weight": module.weight.detach(), "tied": tied.detach(), "bias": module.bias.detach()}
    whole = {"state_dict": state, "epoch": 3, "optimizer": torch.optim.Adam(module.parameters()).state_dict()}
    torch.save({"all of a run": whole, "tensors": state, "a module": module}[saved], tmp_path / "saved.pt")
    with pytest.raises(DumpError) as refused, open_checkpoint(tmp_path / "saved.pt"):
        pass
    line, other = str(refused.value.hint).partition("in Python: ")[2].split("\n")
    if saved == "a module":
        exec(line.replace("weights_only=True)", "weights_only=False).state_dict()"), {})
        assert "weights_only=False).state_dict()" in other
    else:
        exec(line, {})
    prefix = "state_dict." if saved == "all of a run" else ""
    with open_checkpoint(tmp_path / "saved.safetensors") as tensors:
        np.testing.assert_array_equal(tensors[f"{prefix}weight"].read(), module.weight.detach().numpy())
        assert len(tensors) == {"a module": 2}.get(saved, 3)


def test_an_index_of_files_of_torch_is_answered_with_how_to_write_others(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(DumpError, match="pickles, which are never read") as refused:
        load(tmp_path / "pytorch_model.bin.index.json")
    torch = pytest.importorskip("torch", reason="torch is absent: its files were NOT rewritten")
    pytest.importorskip("safetensors.torch", reason="safetensors is absent: files of torch were NOT rewritten")
    for part in (1, 2):
        torch.save({f"w{part}": torch.ones(2, 3).T}, tmp_path / f"pytorch_model-0000{part}-of-00002.bin")
    line = str(refused.value.hint).partition("in Python: ")[2].partition("; then name")[0]
    exec(line, {})
    with open_checkpoint(tmp_path) as tensors:
        assert {*tensors} == {"w1", "w2"}


def test_of_arrays_of_objects_it_is_said_how_what_is_in_them_is_written(tmp_path: Path) -> None:
    np.savez(tmp_path / "tree.npz", params=np.array({"layer": {"w": np.ones(2)}}, object))
    with pytest.raises(DumpError, match="never unpickled") as refused, open_checkpoint(tmp_path / "tree.npz"):
        pass
    line = str(refused.value.hint).partition("in Python: ")[2]
    np.save(tmp_path / "tree.npy", np.array({"params": {"layer": {"w": np.ones(2)}}}, object), allow_pickle=True)
    pair = np.array([{"layer": {"w": np.ones(2)}}, {"norm": {"mean": np.ones(2)}}], object)
    np.save(tmp_path / "pair.npy", pair, allow_pickle=True)
    for name, keys in (
        ("tree.npz", ["params/layer/w"]),
        ("tree.npy", ["params/layer/w"]),
        ("pair.npy", ["0/layer/w", "1/norm/mean"]),
    ):
        exec(line.replace("FILE", repr(str(tmp_path / name))).replace("NEW", str(tmp_path / "new")), {})
        with open_checkpoint(tmp_path / "new.npz") as tensors:
            assert [*tensors] == keys


def test_a_pickle_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("saved.npz", "saved.safetensors", "saved.pkl", "saved"):
        (tmp_path / name).write_bytes(pickle.dumps(flat()))
        with pytest.raises(DumpError) as refused:
            load(tmp_path / name)
    for name in ("saved.pkl", "saved"):
        with pytest.raises(DumpError) as refused:
            load(tmp_path / name)
        (tmp_path / "saved.npz").unlink()
        exec(str(refused.value.hint).partition("in Python: ")[2])
        assert load(tmp_path / "saved.npz").notes == ()
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DumpError):
        load(tmp_path / "object.npy")


def test_the_index_of_a_file_in_parts_is_answered_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(DumpError) as refused:
        load(tmp_path / "model.safetensors.index.json")
    assert refused.value.hint == f"name the folder that the files are in: {tmp_path}"


@pytest.mark.parametrize(
    "index",
    ['{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}', '{"weight_map": {"b": "../two"}}', "[", "3"],
    ids=["of files", "of others", "damaged", "a number"],
)
def test_a_folder_that_lacks_a_file_of_its_index_is_said_to(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    np.savez(tmp_path / "one.npz", **flat())
    (tmp_path / "one.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    if "one" not in index:
        assert load(tmp_path).notes == ()
        return
    with pytest.raises(DumpError, match=r"lacks two\.safetensors, of 2 files that model\."):
        load(tmp_path)


def test_of_several_steps_it_is_said_which_is_read(tmp_path: Path) -> None:
    for step in (9, 10):
        np.savez(tmp_path / f"state-{step:06}.npz", **flat())
    folder = tmp_path.name
    assert load(tmp_path).notes == (f"{folder}: step 10 is read, the last of 2; {folder}/NAME is another",)


def test_of_several_items_it_is_said_which_is_read(tmp_path: Path) -> None:
    for item in ("model", "ema"):
        (tmp_path / "run" / item).mkdir(parents=True)
        (tmp_path / "run" / item / "_METADATA").touch()
    (tmp_path / "run" / "_CHECKPOINT_METADATA").touch()
    assert [*choice_note(tmp_path / "run")] == ["run: model is read, and not ema"]
    assert [*choice_note(tmp_path / "run" / "ema")] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_orbax_checkpoint_without_its_description_is_refused(tmp_path: Path) -> None:
    path = orbax(tmp_path)
    (path / "_METADATA").unlink()
    with pytest.raises(DumpError, match="not an Orbax checkpoint that can be restored: files of it are missing"):
        load(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_orbax_checkpoint_that_is_nested_deeper_than_its_library_reads_is_refused(tmp_path: Path) -> None:
    path = orbax(tmp_path)
    (path / "_METADATA").write_text('{"tree_metadata": ' + '{"a":' * 5000 + "1" + "}" * 5001)
    with pytest.raises(DumpError, match="not an Orbax checkpoint that can be restored: maximum recursion depth"):
        load(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_text_of_a_damaged_orbax_checkpoint_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = orbax(tmp_path)
    (path / "_CHECKPOINT_METADATA").write_text('{"\x1b[31m')
    assert_restored(load(path))
    assert not caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_orbax_checkpoint_that_is_small_and_would_take_much_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_bounds, "_MOST_BEYOND", 1 << 20)
    library = pytest.importorskip("orbax.checkpoint", reason="Orbax is absent: its checkpoints were NOT read back")
    with library.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", {"w": np.zeros(1 << 20, np.float32)})
    with pytest.raises(DumpError, match="/saved: it has 0 MiB, and its tensors would take 4 MiB of memory"):
        load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["flax_model.msgpack", "config.json"], "name a file in it: {0}/flax_model.msgpack"),
        (["b.pt", "a.pt"], "name a file in it: {0}/a.pt or {0}/b.pt"),
        (
            [f"{each}.eqx" for each in range(5)],
            "name a file in it: {0}/0.eqx or {0}/1.eqx or {0}/2.eqx, or one of 2 more",
        ),
        (["notes.txt"], "None"),
    ],
)
def test_of_a_folder_without_tensors_the_files_in_it_are_named(names: list[str], hint: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DumpError, match="it holds no tensors") as refused:
        load(tmp_path)
    assert str(refused.value.hint) == hint.format(tmp_path)


def test_several_files_of_one_model_in_a_folder_are_no_checkpoint(tmp_path: Path) -> None:
    for name in ("best", "last"):
        np.savez(tmp_path / f"{name}.npz", **flat())
    with pytest.raises(DumpError, match="it holds two tensors called") as refused:
        load(tmp_path)
    assert refused.value.hint == "in a folder, name one of its files"


@pytest.mark.parametrize("name", ["saved.keras", "saved.weights.h5", "saved.h5"])
def test_a_keras_file_is_for_keras(tmp_path: Path, name: str) -> None:
    with pytest.raises(DumpError, match="only the Keras model that wrote it can read it") as refused:
        variables_from_file(CheckpointRequest(path=tmp_path / name), shapes(), dict)
    hint = str(refused.value.hint)
    assert "name that model as the target" in hint
    assert f"numpy.savez({str(tmp_path / 'saved.npz')!r}, " in hint
    assert ("model.save_weights(" in hint) is (name == "saved.h5")


def test_leaves_without_names_are_for_equinox(tmp_path: Path) -> None:
    with (tmp_path / "saved.eqx").open("wb") as file:
        np.save(file, np.zeros(7, np.float32))
    with pytest.raises(DumpError) as refused:
        load(tmp_path / "saved.eqx")
    assert "so that only its own model reads it; for another, write them as .npz, in Python" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["saved.npz", "saved.msgpack", "saved.eqx"])
def test_a_checkpoint_that_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DumpError, match=f"{name}: it cannot be opened"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["saved.npz", "saved.msgpack", "saved.eqx"])
def test_a_checkpoint_that_is_damaged_is_refused(tmp_path: Path, name: str) -> None:
    if name == "saved.msgpack":
        pytest.importorskip("flax", reason="Flax is absent: a damaged checkpoint of it was NOT read")
    (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00 nothing more")
    with pytest.raises(DumpError):
        load(tmp_path / name)


@pytest.mark.parametrize("dtype", [",f4", "f4" + "," * 99, "1" * 5000 + "f4", "f4,f4", "U2", "O"])
def test_a_flax_checkpoint_whose_dtypes_are_none_is_refused(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("flax", reason="Flax is absent: a damaged checkpoint of it was NOT read")
    msgpack = pytest.importorskip("msgpack")
    array = msgpack.ExtType(1, msgpack.packb(([2], dtype, bytes(16))))
    (tmp_path / "saved.msgpack").write_bytes(msgpack.packb({"params": {"head": {"kernel": array}}}))
    with pytest.raises(GradscopeError):
        load(tmp_path / "saved.msgpack")


def test_a_flax_checkpoint_that_is_nested_too_deep_is_refused_with_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("flax", reason="Flax is absent: a damaged checkpoint of it was NOT read")
    (tmp_path / "saved.msgpack").write_bytes(b"\x81\xa1a" * 5000)
    with pytest.raises(DumpError, match="not a Flax checkpoint: it is damaged, or nested too deep"):
        load(tmp_path / "saved.msgpack")


def test_a_key_map_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"absent.map: it cannot be read as a key map"):
        read_key_map(tmp_path / "absent.map")


def test_a_checkpoint_in_a_folder_that_may_not_be_entered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, tmp_path)
    with pytest.raises(MachineError, match=r"cannot open .*: Permission denied"), open_checkpoint(tmp_path / "a.npz"):
        pass
    with pytest.raises(MachineError, match=r"cannot open .*: Permission denied"):
        tensor_from_file(str(tmp_path / "a.npz"))
