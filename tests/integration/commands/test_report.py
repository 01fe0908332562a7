"""`gradscope report`: which page it writes of which paths, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import gradscope as gs
from tests.integration import models
from tests.integration.command import gradscope
from tests.support.page_samples import content_of, run_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for run, scale in (("one", 1.0), ("other", 2.0)):
        (tmp_path / run).mkdir()
        for step in (1, 2):
            weights, x = np.full(3, scale * step, np.float32), np.ones(3, np.float32)
            dump = gs.capture(lambda w, x: ((w * x) ** 2).sum(), weights, x)
            gs.save(tmp_path / run / f"step_{step}.npz", dump)
    return tmp_path


@pytest.mark.parametrize(
    ("what", "kind", "sets"),
    [
        ("one/step_1.npz", "dump", ["one/step_1.npz"]),
        ("one", "dump", ["one"]),
        ("one/step_1.npz one/step_2.npz", "comparison", ["one/step_2.npz"]),
        ("one/step_1.npz one/step_2.npz other/step_1.npz", "comparison", ["one/step_2.npz", "other/step_1.npz"]),
        ("one other", "comparison", ["step_1", "step_2"]),
        ("run run run", "run", ["run", "run", "run"]),
    ],
)
def test_a_page_is_of_a_dump_of_steps_or_of_a_comparison(folder: Path, what: str, kind: str, sets: list[str]) -> None:
    run_folder(folder / "run")
    done = gradscope("report", *what.split(), "-o", "page.html", folder=folder)
    assert (done.status, done.errors) == (0, "")
    page = folder / "page.html"
    assert done.output == f"page.html: {page.stat().st_size:,} bytes\n"
    content, _ = content_of(page.read_text(encoding="utf-8"))
    assert content["kind"] == kind
    assert [each["name"] for each in content["sets"]] == sets


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ("", "different"),
        ("--tol 10", "same"),
        ("--atol 100 --rtol 0", "same"),
        ("--select re:loss", "different"),
        ("--exclude re:.* --allow-missing re:.*", "nothing compared"),
    ],
)
def test_a_comparison_is_judged_by_the_options_of_compare(folder: Path, options: str, verdict: str) -> None:
    two = "one/step_1.npz other/step_1.npz"
    judged = gradscope("compare", *two.split(), *options.split(), "--json", folder=folder)
    done = gradscope("report", *two.split(), *options.split(), "-o", "page.html", folder=folder)
    if judged.output == "":
        assert (done.status, done.errors) == (judged.status, judged.errors)
        return
    assert done.status == 0
    assert json.loads(judged.output)["verdict"] == verdict
    assert f'">{verdict}</dt>' in (folder / "page.html").read_text(encoding="utf-8")


def test_runs_are_judged_by_the_options_of_compare_too(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", layers=3)
    run_folder(tmp_path / "b", layers=2)
    for options, verdict in (("", "different"), ("--allow-missing layer2", "same")):
        assert gradscope("report", "a", "b", *options.split(), "--force", folder=tmp_path).status == 0
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert f'">{verdict}</dt>' in page
    assert content_of(page)[0]["differences"][0]["steps"] == list(range(8))


def test_source_lines_are_in_a_dump_and_on_its_page_where_they_were_requested(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    for options in ("", "--source"):
        dump = f"with{options}.npz"
        assert gradscope("dump", "model.py", *options.split(), "-q", "-o", dump, folder=tmp_path).status == 0
        gradscope("report", dump, "--force", folder=tmp_path)
        sources = content_of((tmp_path / "report.html").read_text(encoding="utf-8"))[0]["sources"]
        assert bool(sources) == bool(options)
    written = (tmp_path / "model.py").read_text().splitlines()
    (label,) = (each for each in sources if written[int(each.split(":")[1]) - 1].strip() == "x = jax.nn.relu(x)")
    first, lines = sources[label]
    assert lines == written[first - 1 : first + 6]
    compared = gradscope("compare", "with.npz", "with--source.npz", "--json", folder=tmp_path)
    assert compared.status == 0
    assert "source_lines" not in compared.output


@pytest.mark.slow
def test_a_page_of_a_run_is_made_without_jax(tmp_path: Path) -> None:
    run_folder(tmp_path / "run")
    program = (
        "import sys; from gradscope.cli.main import _run; sys.argv = ['gradscope', 'report', 'run']\n"
        "sys.exit(_run(None) or 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert content_of((tmp_path / "report.html").read_text(encoding="utf-8"))[0]["kind"] == "run"


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("run one/step_1.npz", 2, "run is a training run, and one/step_1.npz is none"),
        ("run --select a", 2, "--select is of comparisons, and run is alone"),
        ("one/step_1.npz --tol 1", 2, "--tol is of comparisons, and one/step_1.npz is alone"),
        ("run run --as bfloat16", 2, "--as is of dumps, and these are training runs"),
        ("models", 2, "models/a.npz and models/b.npz are dumps of different models, and no steps of one"),
        ("none.npz", 3, "none.npz: it cannot be opened"),
        ("one/step_1.npz -o taken.html", 2, "taken.html exists"),
        ("one/step_1.npz -o nowhere/page.html", 2, "there is no folder"),
        ("one/step_1.npz -o page.txt", 2, "the name of a page ends in .html"),
        ("one/step_1.npz one/step_2.npz --tol-file rules -o rules --force", 2, "one of the files that are read"),
        ("one/step_1.npz one/step_2.npz --map rules -o rules --force", 2, "one of the files that are read"),
    ],
)
def test_what_cannot_be_a_page_is_refused(folder: Path, line: str, status: int, message: str) -> None:
    run_folder(folder / "run")
    (folder / "taken.html").write_text("mine")
    (folder / "rules").touch()
    (folder / "models").mkdir()
    for name, width in (("a", "narrow"), ("b", "wide")):
        program = {width: np.ones(3)}, np.ones(3)
        dump = gs.capture(jax.named_scope(width)(lambda w, x: (next(iter(w.values())) * x).sum()), *program)
        gs.save(folder / "models" / f"{name}.npz", dump)
    done = gradscope("report", *line.split(), folder=folder)
    assert done.status == status
    assert message in done.errors
    assert (folder / "taken.html").read_text() == "mine"


def test_the_same_page_is_made_in_python(folder: Path) -> None:
    gradscope("report", "one/step_1.npz", "one/step_2.npz", folder=folder)
    one, two = (gs.load(folder / "one" / f"step_{step}.npz") for step in (1, 2))
    gs.report(one, two).save(folder / "own.html")
    own, other = (content_of((folder / name).read_text(encoding="utf-8"))[0] for name in ("own.html", "report.html"))
    assert own["depth"][0]["lines"][0]["values"] == other["depth"][0]["lines"][0]["values"]
    assert own["keys"] == other["keys"]
    run_folder(folder / "run")
    run = gs.load(folder / "run")
    runs = content_of(gs.report(run, run).html)[0]
    assert [each["name"] for each in runs["runs"]] == [run.path, run.path]
    with pytest.raises(gs.UsageError, match="runs with runs"):
        gs.report(run, one)
    with pytest.raises(gs.UsageError, match="a Comparison has no candidates"):
        gs.report(gs.compare(one, two), two)


@pytest.mark.parametrize("line", ["report .", "show .", "compare . .", "compare other run"])
def test_a_folder_of_runs_is_refused_for_one(folder: Path, line: str) -> None:
    run_folder(folder / "run")
    run_folder(folder / "other" / "run")
    done = gradscope(*line.split(), folder=folder)
    assert (done.status, " is a folder of training runs, run" in done.errors) == (2, True)


def test_what_is_said_of_runs_alone_is_no_finding_and_the_other_way_round(folder: Path) -> None:
    run_folder(folder / "run")
    for path, word, what in (("one/step_1.npz", "stuck", "a training run"), ("run", "zero-grad", "a dump")):
        done = gradscope("show", path, "--check", word, folder=folder)
        assert (done.status, f"hint: it is said of {what}, and not of a" in done.errors) == (2, True)
