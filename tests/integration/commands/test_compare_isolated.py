"""`gradscope compare --isolate`: which layer of a candidate makes error itself."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import gradscope as gs
from gradscope.dump import reader
from gradscope.dump.reader import open_dump
from gradscope.dump.sources.dump_file import DumpFile
from tests.integration import models
from tests.integration.command import gradscope

#: The last layer's kernel is applied with a sign, behind a layer that amplifies.
FAULTY = models.FORWARD.replace('return x @ variables["last"]["w"]', 'return -x @ variables["last"]["w"]')


@pytest.fixture(scope="module")
def folder(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model.py` with its dumps `a.npz` and, of another seed, `b.npz`; `faulty.py` with its dump `faulty.npz`."""
    folder = tmp_path_factory.mktemp("isolate")
    for name in ("model.py", "a.npz", "b.npz"):
        shutil.copy(dumps / name, folder / name)
    models.write(folder, models.source().replace(models.FORWARD, FAULTY), "faulty.py")
    assert gradscope("dump", "faulty.py", "-o", "faulty.npz", folder=folder).status == 0
    return folder


def test_the_layer_that_makes_the_error_is_named_and_the_status_is_1(folder: Path) -> None:
    done = gradscope("compare", "a.npz", "faulty.npz", "--isolate", "faulty.py", folder=folder)
    assert (done.status, done.errors) == (1, "")
    verdicts, table, arguments, rest = done.output.split("\n\n")
    assert verdicts.splitlines()[1] == (
        "different  Layer by layer: Of 4 layers, `last` makes error by itself (forward rel_l2 2.0, VJP rel_l2 2.0)."
    )
    title, _, row = table.splitlines()
    assert title == "Layers on the reference's inputs and cotangents (1 of 4)"
    assert row.split()[:4] == ["last", "different", "2.00", "1.00e-04"]
    assert arguments.splitlines() == ["Arguments", "of the reference  3 arrays"]
    assert rest == "same  3 layers (--all shows them)\n"


def test_json_has_the_comparison_and_every_layer(folder: Path) -> None:
    done = gradscope("compare", "a.npz", "faulty.npz", "--isolate", "faulty.py", "--json", "--quiet", folder=folder)
    found = done.json
    assert (done.status, found["schema"], found["command"], found["verdict"]) == (1, 1, "compare", "different")
    alone = found["isolation"]
    assert alone["verdict"] == "different"
    first, relu, last, loss = alone["rows"]
    assert [row["status"] for row in (first, relu, last, loss)] == ["same", "same", "different", "same"]
    assert (last["name"], last["forward"], last["forward_tensor"]) == ("last", 2.0, "activation/last")
    assert last["vjp_tensor"] in ("activation_grad/relu", "param_grad/last/w")
    assert last["source"].startswith("faulty.py:")
    assert alone["arguments"] == {
        "reference": ["param/first/w", "param/last/w", "input/x"], "candidate": [], "model": [],
    }  # fmt: skip
    assert alone["left_out"] == []


@pytest.mark.slow
def test_what_the_reference_lacks_is_listed_with_the_reason(folder: Path) -> None:
    dumped = gradscope("dump", "model.py", "-o", "part.npz", "--exclude", "activation*/relu", folder=folder)
    assert dumped.status == 0
    done = gradscope("compare", "part.npz", "a.npz", "--isolate", "model.py", "--allow-missing", ".*", folder=folder)
    assert done.status == 0
    assert "\nnot judged  relu: the reference has no such activation\n" in done.output


@pytest.mark.slow
def test_other_weights_are_no_layers_fault(folder: Path) -> None:
    done = gradscope("compare", "a.npz", "b.npz", "--isolate", "model.py", "--all", folder=folder)
    assert done.status == 1
    said = " ".join(done.output.split())
    assert "same Layer by layer: None of 4 layers makes error by itself, given what the reference gave it: " in said
    assert " the dumps differ in the values of the inputs (`x`) and parameters (`first/w`)." in said
    assert "(4 of 4)" in done.output


def test_the_same_is_the_same_and_csv_has_a_line_for_each_layer(folder: Path) -> None:
    done = gradscope("compare", "a.npz", "a.npz", "--isolate", "model.py", "--format", "csv", folder=folder)
    assert (done.status, done.errors) == (0, "")
    rows = list(csv.DictReader(done.output.splitlines()))
    assert [row["name"] for row in rows] == ["first", "relu", "last", "(loss)"]
    assert {row["status"] for row in rows} == {"same"}


@pytest.mark.slow
def test_a_candidate_runs_again_with_the_options_of_its_dump(folder: Path) -> None:
    options = ("--batch-size", 3, "--seed", 5, "--x64", "--dtype", "float64")
    assert gradscope("dump", "model.py", *options, "-o", "wide.npz", folder=folder).status == 0
    done = gradscope("compare", "wide.npz", "wide.npz", "--isolate", "model.py", "--tol", "1e-12", folder=folder)
    assert (done.status, done.errors) == (0, "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a.npz a.npz b.npz --isolate model.py", "--isolate applies to one reference and one candidate"),
        ("a.npz b.npz --isolate absent.py", "there is no file absent.py"),
        ("a.npz b.npz --isolate linear_regression", "the dump is not one of linear_regression"),
    ],
)
def test_what_cannot_be_isolated_is_a_usage_error(folder: Path, line: str, says: str) -> None:
    done = gradscope("compare", *line.split(), folder=folder)
    assert done.status == 2
    assert says in done.lines[0]


def test_a_batch_that_nothing_tells_is_not_replaced_by_another(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import jax\n"
        "def init(key): return {'w': jax.random.normal(key, (3,))}\n"
        "def batch(key, size): return {'x': jax.random.normal(key, (size, 3))}\n"
        "def loss(variables, batch): return (batch['x'] @ variables['w']).mean()\n"
    )
    captured = gs.capture(
        lambda variables, batch: (batch["x"] @ variables["w"]).mean(),
        {"w": np.ones(3, np.float32)},
        {"x": np.ones((2, 3), np.float32)},
        families=["param", "param_grad"],
    )
    gs.save(tmp_path / "unknown.npz", captured)
    done = gradscope("compare", "unknown.npz", "unknown.npz", "--isolate", "net.py", folder=tmp_path)
    assert done.status == 2
    assert done.lines[0].endswith(
        "the values of input/x are in neither dump, and the candidate's states no seed from which they are made"
    )


@pytest.mark.slow
def test_isolation_is_proposed_where_it_would_run_and_tells_more(folder: Path, tmp_path: Path) -> None:
    output = gradscope("compare", "a.npz", "faulty.npz", folder=folder).output
    proposed = re.search(r"^layers +(.*)", output, re.MULTILINE)
    assert proposed is not None
    assert proposed[1] == "--isolate faulty.py runs each layer by itself: only those at fault differ"
    assert "--isolate" not in gradscope("compare", "a.npz", "a.npz", folder=folder).output
    for name in ("a.npz", "faulty.npz", "faulty.py"):
        shutil.copy(folder / name, tmp_path / name)
    with (tmp_path / "faulty.py").open("a") as file:
        file.write("# changed since\n")
    assert "--isolate" not in gradscope("compare", "a.npz", "faulty.npz", folder=tmp_path).output
    shutil.copy(folder / "faulty.py", tmp_path / "faulty.py")
    done = gradscope("dump", "model.py", "--stats-only", "-o", tmp_path / "golden.npz", folder=folder)
    assert done.status == 0, done.errors
    assert "--isolate" not in gradscope("compare", "golden.npz", "faulty.npz", folder=tmp_path).output


def test_each_dump_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(path: Path, **options: bool) -> DumpFile:
        opened.append(path.name)
        return open_dump(path, **options)

    monkeypatch.setattr(reader, "open_dump", counted)
    done = gradscope("compare", "a.npz", "faulty.npz", folder=folder)
    assert "--isolate faulty.py" in done.output
    annotated = gradscope("compare", "a.npz", "faulty.npz", "--format", "github", folder=folder)
    assert annotated.output.startswith("::error file=faulty.py,line="), annotated.output
    assert opened == ["a.npz", "faulty.npz"] * 2
