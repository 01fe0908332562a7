"""What a terminal shows fits one screen and begins with the verdict; what is asked for, and a pipe, have everything."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from gradscope.dump.manifest.manifest import Layer, RunFacts
from gradscope.dump.record import Record, SiteFacts
from gradscope.dump.writer import DumpWriter
from gradscope.stats import tensor_stats
from tests.integration.command import Finished, gradscope, in_terminal

#: What a layer may be called in an untrusted file.
STRANGE = ("long" * 30, "markup[bold red]", "層", "a b")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dumps of a hundred layers each: `fine.npz`, and `wrong.npz` with NaNs from the middle on."""
    folder = tmp_path_factory.mktemp("large")
    for name, wrong in (("fine", False), ("wrong", True)):
        with DumpWriter(folder / f"{name}.npz") as writer:
            layers = []
            for at in range(100):
                path = f"{STRANGE[at // 10 % 4]}{at * at}"
                bad = wrong and at >= 50
                for family, value in (("activation", np.nan if bad else 1.0), ("activation_grad", 0.5)):
                    array = np.full(4, value, np.float32)
                    facts = SiteFacts(index=at, source=f"net.py:{at}")
                    writer.add(
                        Record(
                            family=family, name=path, shape=(4,), dtype="float32", stats=tensor_stats(array).to_json(),
                            site=facts, array=array,
                        )
                    )  # fmt: skip
                layers.append(Layer(path=path, index=at, outputs=(path,)))
            writer.commit(RunFacts(loss=math.nan if wrong else 2.5, layers=tuple(layers)))
    return folder


def shown(folder: Path, line: str, columns: int) -> Finished:
    return in_terminal(*line.split(), folder=folder, columns=columns)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", ["fine", "wrong"])
def test_a_terminal_shows_one_screen(large: Path, name: str, columns: int) -> None:
    lines = shown(large, f"show {name}.npz", columns).plain.splitlines()
    assert len(lines) <= 40
    assert max(map(cell_len, lines)) <= columns
    assert lines[0].startswith("verdict  " + ("nothing looks wrong" if name == "fine" else "nonfinite: activation/"))
    assert any(line.startswith("loss ") for line in lines)
    assert f"gradscope show {name}.npz --full" in lines[-2] + lines[-1] + lines[-3]


@pytest.mark.slow
def test_a_terminal_of_few_lines_gets_fewer(large: Path) -> None:
    assert len(in_terminal("show", "wrong.npz", folder=large, columns=80, LINES="24").plain.splitlines()) <= 23


@pytest.mark.slow
def test_the_layer_where_it_went_wrong_is_among_the_lines(large: Path) -> None:
    table = shown(large, "show wrong.npz", 80).plain.partition("Block by block")[2]
    assert re.search(r"^\S*層?.*2500 .*nonfinite", table, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", ["--full", "--sort -rms", "--families activation,activation_grad", "--select re:.*", "--no-fold"]
)
def test_what_is_requested_is_complete(large: Path, options: str) -> None:
    plain = shown(large, f"show fine.npz {options}", 160).plain
    assert sum(re.search(r"\s1\.00\s.*\s0\.500\s", line) is not None for line in plain.splitlines()) == 100


def test_a_pipe_has_every_row(large: Path) -> None:
    assert gradscope("show", "fine.npz", folder=large).output.count("net.py:") == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fine", "wrong"])
def test_a_pipe_has_the_verdict_of_a_terminal(large: Path, name: str) -> None:
    (piped,) = (line for line in gradscope("show", f"{name}.npz", folder=large).output.splitlines()
                if line.startswith("verdict "))  # fmt: skip
    first = shown(large, f"show {name}.npz", 300).plain.splitlines()[0]
    assert piped.split() == first.split()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_a_comparison_is_one_screen_too(large: Path, columns: int) -> None:
    done = shown(large, "compare fine.npz wrong.npz", columns)
    lines = done.plain.splitlines()
    assert done.status == 1
    assert len(lines) <= 40
    assert re.search(r"activation +50 +50", done.plain)
    assert re.search(r"2500 .* forward$", done.plain, re.MULTILINE)
    full = shown(large, "compare fine.npz wrong.npz --full", columns).plain.splitlines()
    assert len(full) > 50


@pytest.mark.slow
@pytest.mark.parametrize("line", ["show a.npz", "compare a.npz b.npz"])
def test_columns_that_do_not_fit_are_named_as_in_full(dumps: Path, line: str) -> None:
    narrow, wide = shown(dumps, line, 40).plain, shown(dumps, line, 300).plain
    assert "hidden at this width" not in wide
    hidden = re.search(r"hidden at this width: (.*?) \(", " ".join(narrow.split()))
    assert hidden is not None, narrow
    assert all(name.split()[-1] in wide for name in hidden[1].split(", "))


def test_provenance_takes_a_line_each_and_hashes_are_requested(dumps: Path) -> None:
    def differences(line: str) -> list[str]:
        text = shown(dumps, line, 160).plain.partition("The runs differ in\n")[2].partition("\n\n")[0]
        return text.splitlines()

    short = differences("compare a.npz b.npz")
    assert {line.split()[0] for line in short} == {"argv", "seed", "hashes"}
    assert "batch_sha256" in short[-1]
    assert not re.search("[0-9a-f]{32}", "".join(short))
    verbose = differences("compare a.npz b.npz -v")
    assert len(re.findall("[0-9a-f]{64}", "".join(verbose))) == 2


def test_columns_that_say_nothing_are_left_out(dumps: Path) -> None:
    names = ("mismatch", "ulp_max", "growth")
    near = gradscope("compare", "a.npz", "a.npz", "--all", folder=dumps).output
    far = gradscope("compare", "a.npz", "b.npz", "--select", "param/*", folder=dumps).output
    assert "ulp_max" in near
    assert not any(name in far for name in names)


@pytest.mark.slow
def test_claims_are_not_cut(dumps: Path) -> None:
    piped = gradscope("check", "model.py", "--json", folder=dumps).json
    plain = shown(dumps, "check model.py -q", 60).plain
    assert all(row["what"] in plain for row in piped["rows"])
    assert max(map(len, plain.splitlines())) <= 60
