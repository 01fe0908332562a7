"""`gradscope dump`: where it writes and what it refuses to, and what each of its options makes of a dump."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from tests.integration import models
from tests.integration.command import Finished, gradscope, gradscope_process, in_shell, largest_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model file."""
    models.write(tmp_path, models.source())
    return tmp_path


def dump(folder: Path, *options: object, model: str = "model.py") -> Finished:
    return gradscope("dump", model, *options, folder=folder)


def dumped(folder: Path, *options: object, model: str = "model.py") -> Finished:
    """A dump that must go well."""
    done = dump(folder, *options, model=model)
    assert done.status == 0, done.errors
    return done


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files if not name.startswith("__")}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(done: Finished, status: int, says: str) -> None:
    """Assert that a command ended with a status, a line that says why, and at most a hint."""
    assert (done.status, done.output) == (status, "")
    assert done.lines[0].startswith("gradscope: error: ")
    assert says in done.lines[0]
    assert all(line.startswith("hint: ") for line in done.lines[1:])
    assert len(done.lines) <= 2


# Where it writes


def test_it_writes_into_the_working_folder_and_replaces_its_own_dump(folder: Path) -> None:
    done = dumped(folder)
    assert names(folder) == ["model.npz", "model.py"]
    assert done.errors == ""
    assert done.output == gradscope("show", "model.npz", folder=folder).output
    before = (folder / "model.npz").read_bytes()
    dumped(folder, "--seed", 1)
    assert (folder / "model.npz").read_bytes() != before


@pytest.mark.slow
def test_a_named_output_is_replaced_only_by_force(folder: Path) -> None:
    dumped(folder, "-o", "before.npz")
    before = (folder / "before.npz").read_bytes()
    refused(dump(folder, "--seed", 1, "-o", "before.npz"), 2, "before.npz exists")
    assert (folder / "before.npz").read_bytes() == before
    dumped(folder, "--seed", 1, "-o", "before.npz", "--force")
    assert (folder / "before.npz").read_bytes() != before


@pytest.mark.slow
@pytest.mark.parametrize("named", ["model.npz", "./model.npz", "../{0}/model.npz"])
def test_the_default_output_is_replaced_also_where_it_is_named(folder: Path, named: str) -> None:
    dumped(folder)
    before = (folder / "model.npz").read_bytes()
    dumped(folder, "--seed", 1, "-o", named.format(folder.name))
    assert (folder / "model.npz").read_bytes() != before
    np.savez(folder / "model.npz", kernel=np.ones(3))
    refused(dump(folder, "-o", named.format(folder.name)), 2, "model.npz exists")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["another target's", "numpy's", "damaged", "empty"])
def test_the_default_output_replaces_no_other_file(folder: Path, kind: str) -> None:
    path = folder / "model.npz"
    if kind == "another target's":
        (folder / "other.py").write_text((folder / "model.py").read_text(encoding="utf-8"), encoding="utf-8")
        dumped(folder, "-o", "model.npz", model="other.py")
    elif kind == "numpy's":
        np.savez(path, kernel=np.ones(3))
    elif kind == "damaged":
        dumped(folder)
        path.write_bytes(path.read_bytes()[:-200])
    else:
        path.touch()
    before = path.read_bytes()
    refused(dump(folder), 2, "model.npz exists, and is no dump")
    assert path.read_bytes() == before
    dumped(folder, "--force")


def test_a_link_is_followed(folder: Path) -> None:
    (folder / "link.npz").symlink_to("real.npz")
    dumped(folder, "-o", "link.npz")
    assert (folder / "link.npz").is_symlink()
    assert "activation/first" in arrays(folder / "real.npz")


def test_what_is_no_regular_file_is_never_replaced(folder: Path) -> None:
    (folder / "folder.npz").mkdir()
    os.mkfifo(folder / "fifo.npz")
    (folder / "loop.npz").symlink_to("loop.npz")
    for target, says in (
        ("loop.npz", "Too many levels of symbolic links"),
        ("folder.npz", "it is a folder, not a regular file"),
        ("fifo.npz", "it is a FIFO, not a regular file"),
        ("/dev/null", "it is a device, not a regular file"),
        ("none/x.npz", f"there is no folder {folder / 'none'}"),
    ):
        refused(dump(folder, "-o", target, "--force"), 2, says)
    assert names(folder) == ["fifo.npz", "folder.npz", "loop.npz", "model.py"]
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to_and_a_disk_that_is_too_small_are_the_environments(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("NOT TESTED: a full and a read-only disk, because file systems cannot be mounted here")
    try:
        refused(dump(folder, "-o", "disk/x.npz", "--batch-size", 512), 5, "and its disk has 4,096 bytes")
        refused(dump(folder, "-o", "disk/x.npz"), 5, "No space left on device")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        refused(dump(folder, "-o", "disk/x.npz"), 5, "cannot write to disk/x.npz: its folder is read-only")
        assert names(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_fills_on_the_way_leaves_the_old_dump_and_no_litter(folder: Path) -> None:
    dumped(folder)
    before = (folder / "model.npz").read_bytes()
    done = in_shell(f"{largest_file(9)}; $gradscope dump model.py --batch-size 512 --force --no-cache", folder)
    refused(done, 5, "File too large")
    assert (folder / "model.npz").read_bytes() == before
    assert names(folder) == ["model.npz", "model.py"]


# What it holds


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1])
def test_a_seed_that_jax_cannot_take_is_refused(folder: Path, seed: int) -> None:
    refused(dump(folder, "--seed", seed), 2, f"--seed {seed} does not fit into 64 bits")
    assert names(folder) == ["model.py"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(folder: Path) -> None:
    for name, options in {"a": [], "b": ["--no-cache"], "c": ["--seed", "3"]}.items():
        dumped(folder, "-o", f"{name}.npz", *options)
    a, b, c = (arrays(folder / f"{name}.npz") for name in "abc")
    assert list(a) == list(b) == list(c)
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert a["param/first/w"].tobytes() != c["param/first/w"].tobytes()
    assert a["input/x"].tobytes() != c["input/x"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--families", "param, activation_grad"],
         {"param/first/w", "param/last/w", "activation_grad/first", "activation_grad/relu", "activation_grad/last"}),
        (["--select", "re:(first|relu)$"],
         {"activation/first", "activation_grad/first", "activation/relu", "activation_grad/relu"}),
        (["--select", "*/last*", "--select", "x", "--exclude", "*_grad/*", "--depth", "1"],
         {"param/last/w", "activation/last", "input/x"}),
    ],
    ids=["families", "expression", "globs"],
)  # fmt: skip
def test_a_dump_contains_what_was_requested(folder: Path, options: list[str], keys: set[str]) -> None:
    dumped(folder, *options)
    assert set(arrays(folder / "model.npz")) == keys


@pytest.mark.slow
def test_a_dump_of_statistics_has_the_same_statistics(folder: Path) -> None:
    full = dumped(folder, "-o", "whole.npz", "--json").json
    alone = dumped(folder, "-o", "alone.npz", "--json", "--stats-only").json
    assert arrays(folder / "alone.npz") == {}
    assert alone["rows"] == full["rows"]
    assert gradscope("compare", "whole.npz", "alone.npz", folder=folder).status == 0


def test_a_pattern_that_selects_nothing_suggests_names(folder: Path) -> None:
    done = dump(folder, "--select", "FIRST")
    refused(done, 2, "pattern 'FIRST' selects nothing")
    assert done.lines[1].startswith("hint: did you mean first")
    assert names(folder) == ["model.py"]


def test_rows_are_sorted_by_a_column_within_their_tables(folder: Path) -> None:
    report = dumped(folder, "--sort", "-rms", "--json").json
    sizes = [row["rms"] for row in report["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    done = gradscope("show", "model.npz", "--sort", "nonsense", folder=folder)
    refused(done, 2, "no column 'nonsense' to sort by")
    done = dump(folder, "--sort", "nonsense", "-o", "kept.npz")
    refused(done, 2, "no column 'nonsense' to sort by")
    assert done.lines[1].startswith("hint: the dump is in kept.npz, and gradscope show sorts it, too; ")
    assert gradscope("verify", "kept.npz", folder=folder).status == 0


@pytest.mark.slow
def test_narrow_types_are_computed_in_and_stored_as_requested(folder: Path) -> None:
    dumped(folder, "--dtype", "bfloat16", "-o", "narrow.npz")
    dumped(folder, "--dtype", "bfloat16", "--cast", "float32", "-o", "wide.npz")
    assert {array.dtype.str for array in arrays(folder / "narrow.npz").values()} == {"|V2"}
    assert {array.dtype.str for array in arrays(folder / "wide.npz").values()} == {"<f4"}
    done = gradscope("compare", "narrow.npz", "wide.npz", "--tol", 0, folder=folder)
    assert done.status == 0, done.output


@pytest.mark.slow
def test_precision_is_that_requested(folder: Path) -> None:
    report = dumped(
        folder, "--x64", "--dtype", "float64", "--matmul-precision", "highest", "--self-check", "--json"
    ).json
    assert {row["dtype"] for row in report["rows"]} == {"float64"}
    assert (report["provenance"]["x64"], report["provenance"]["matmul_precision"]) == (True, "highest")
    assert report["self_check"]["total"] == 2
    assert report["self_check"]["max_rel_l2"] < 1e-12


ATTENTION = """
import jax, jax.numpy as jnp

def init(key):
    keys = jax.random.split(key, 3)
    q, k, v = (jax.random.normal(each, (8, 8)) for each in keys)
    return {"k": {"b": jnp.zeros((1, 1, 8)), "w": k}, "q": q, "v": v}

def batch(key, size=4):
    return {"x": jax.random.normal(key, (size, 16, 8))}

def loss(p, batch):
    x = batch["x"]
    scores = jnp.einsum("bqd,bkd->bqk", x @ p["q"], x @ p["k"]["w"] + p["k"]["b"])
    return jnp.tanh(jax.nn.softmax(scores) @ (x @ p["v"])).mean()
"""


@pytest.mark.slow
def test_a_gradient_that_is_zero_but_for_rounding_has_no_part_in_the_self_check(folder: Path) -> None:
    (folder / "attention.py").write_text(ATTENTION)
    checked = dumped(folder, "--self-check", "--json", model="attention.py").json["self_check"]
    assert checked["zero_but_rounding"] == ["k/b"]  # softmax takes what is added to all scores of a query for nothing
    assert checked["noise"]["k/b"] > 0.25
    assert checked["max_rel_l2"] < 1e-4
    assert checked.get("largest") != "k/b"


@pytest.mark.slow
def test_exact_quantiles_are_those_of_the_values(folder: Path) -> None:
    row = dumped(folder, "--exact-quantiles", "--select", "activation/first", "--json").json["rows"][0]
    values = np.abs(arrays(folder / "model.npz")["activation/first"])
    assert row["p50"] in values


@pytest.mark.slow
def test_choices_are_reported_only_on_request(folder: Path) -> None:
    np.save(folder / "batch.npy", np.ones((5, 3)))
    note = "x was converted from float64 to float32"
    assert dumped(folder, "--data", "batch.npy", "-o", "b.npz", "-v").lines[2:] == [note]
    assert dumped(folder, "--data", "batch.npy", "-o", "c.npz", "-q").lines == []


# Batches from files


@pytest.mark.slow
def test_a_batch_from_a_file_takes_the_place_of_the_models_own(folder: Path) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.savez(folder / "batch.npz", x=x)
    report = dumped(folder, "--data", "batch.npz", "--json").json
    assert report["provenance"]["batch_size"] == 5
    assert np.array_equal(arrays(folder / "model.npz")["input/x"], x)
    dumped(folder, "--data", "model.npz", "-o", "again.npz")
    assert gradscope("compare", "model.npz", "again.npz", "--bitwise", folder=folder).status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leaves", "says"),
    [
        ({"y": np.ones((5, 3))}, "it lacks x; the model has no y"),
        ({"x": np.ones((5, 4))}, "x has shape [5, 4], expected [N, 3]"),
        ({"x": np.ones((5, 3), np.int32)}, "x is integer (int32), expected floating-point (float32)"),
    ],
    ids=["names", "shape", "kind"],
)
def test_a_batch_with_the_wrong_leaves_is_refused(folder: Path, leaves: dict[str, Any], says: str) -> None:
    np.savez(folder / "batch.npz", **leaves)
    done = dump(folder, "--data", "batch.npz")
    refused(done, 3, f"batch.npz is not a batch for this model: {says}")
    assert done.lines[1] == "hint: the model's own batch is x float32[4, 3]"


def test_a_batch_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "text.npz").write_text("hello")
    refused(dump(folder, "--data", "text.npz"), 3, "text.npz: it is not a dump")


# The environment


def test_a_missing_device_is_reported_with_those_that_are_there(folder: Path) -> None:
    done = gradscope_process("dump", "model.py", folder=folder, JAX_PLATFORMS="rocm")
    refused(done, 5, "JAX has no device for JAX_PLATFORMS='rocm'; installed: cpu")


def test_a_dump_is_made_where_jit_is_disabled(folder: Path) -> None:
    done = gradscope_process("dump", "model.py", folder=folder, JAX_DISABLE_JIT="1")
    assert done.status == 0, done.errors


def test_a_cache_that_cannot_be_kept_is_a_message(folder: Path) -> None:
    done = gradscope_process("dump", "model.py", folder=folder, XDG_CACHE_HOME="/dev/null")
    assert done.status == 0
    assert done.lines == ["compiled programs are not kept: [Errno 20] Not a directory: '/dev/null/gradscope/compiled'"]


@pytest.mark.slow
def test_an_output_is_in_the_folder_of_the_start_wherever_the_model_goes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    models.write(tmp_path, models.source(more="import os\nos.chdir('elsewhere')\n"))
    for command in (["dump", "model.py"], ["calibrate", "model.py", "-o", "floor.npz"]):
        done = gradscope(*command, folder=tmp_path)
        assert done.status == 0, done.errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "floor.npz", "model.npz", "model.py"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.slow
def test_an_input_is_in_the_folder_of_the_start_wherever_the_model_goes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    models.write(tmp_path, models.source(more="import os\nos.chdir('elsewhere')\n"))
    np.savez(tmp_path / "data.npz", x=np.full((4, 3), 2, np.float32))
    for location in ("data.npz", "data.py:batches"):
        (tmp_path / "data.py").write_text("import numpy as np\ndef batches():\n    yield dict(np.load('data.npz'))\n")
        command = ["dump", "model.py", "--data", location, "--checkpoint", "model.npz", "--force", "-o", "out.npz"]
        if not (tmp_path / "model.npz").exists():
            assert gradscope("dump", "model.py", folder=tmp_path).status == 0
        done = gradscope(*command, folder=tmp_path)
        assert done.status == 0, done.errors
        with open_dump(tmp_path / "out.npz") as dump:
            assert (dump.array("input/x") == 2).all()
    # What the model's own folder has under the name is another file.
    shutil.copy(tmp_path / "model.npz", tmp_path / "elsewhere" / "data.npz")
    done = gradscope("dump", "model.py", "--data", "data.npz", folder=tmp_path)
    assert done.status == 0, done.errors


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    model = models.write(tmp_path, models.source())
    np.savez(tmp_path / "data.npz", x=np.ones((4, 3), np.float32))
    text, data = model.read_bytes(), (tmp_path / "data.npz").read_bytes()
    read = "one of the files that are read"
    for options, output, role in (
        (("--data", "data.npz"), "model.py", "the source of a module"),
        (("--data", "data.npz"), "data.npz", read),
        (("--feed", "pred=data.npz:x"), "data.npz", read),
        (("--of", "pred", "--cotangent", "data.npz"), "data.npz", read),
    ):
        done = gradscope("dump", "model.py", *options, "--force", "-o", output, folder=tmp_path)
        assert (done.status, done.output) == (2, "")
        assert done.lines[0].endswith(f"{output}: it is {role}")
    own = "import numpy as np\ndef batch(key, size):\n    return dict(np.load('data.npz'))\n"
    models.write(tmp_path, models.source(batch=own), name="own.py")
    for command in ("dump", "calibrate"):
        done = gradscope(command, "own.py", "--force", "-o", "data.npz", folder=tmp_path)
        assert (done.status, done.output) == (2, "")
        assert done.lines[0].endswith(f"data.npz: it is {read}")
    assert (model.read_bytes(), (tmp_path / "data.npz").read_bytes()) == (text, data)
