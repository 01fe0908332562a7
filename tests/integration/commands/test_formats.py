"""What the commands print: the same rows in every format, and text that suits whatever it is written to."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from gradscope.stats import tensor_stats
from tests.integration.command import (
    Finished,
    gradscope,
    gradscope_process,
    in_shell,
    in_terminal,
    largest_file,
    terminal_process,
)
from tests.support.dumps import record, write

FORMATS = ("table", "json", "csv", "markdown")

#: Commands that only read, with their statuses.
READING = {
    "show a.npz": 0,
    "show a.npz --tensor activation/first": 0,
    "show a.npz --ledger": 0,
    "compare a.npz b.npz": 1,
}

NAMES = {
    "input": ["x"],
    "activation": ["first", "relu", "last"],
    "param": ["first/w", "last/w"],
}

HOSTILE = (
    *("\x1b[2J\x1b]0;title\x07name", "line\nfeed", "\u202eover", "\u2066isolate", "\x9b31mred", "tab\tstop"),
    *("block[0].attn[q]", "[red]x[/red]", "[/0]", "|pipe|`tick`", "<b>", "=SUM(A1)", "層/" + "long" * 60),
)

#: What a terminal would obey, colours aside: C0 and C1 controls, bidi marks.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def reading(command: str, folder: Path, *options: str, **environment: str) -> Finished:
    return gradscope(*command.split(), *options, folder=folder, **environment)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two dumps whose names and facts try to do things."""
    folder = tmp_path_factory.mktemp("hostile")
    facts = {"seed": "\x1b[31m", "device": "[red]\x1b[2J"}
    for name, factor in (("a.npz", 1), ("b.npz", 2)):
        array = np.arange(6, dtype=np.float32).reshape(2, 3) * factor
        stats = tensor_stats(array).to_json()
        records = [record(each, array, stats=stats) for each in HOSTILE]
        write(folder / name, records, loss=1.0, note="a\x1b[2Jb", provenance={**facts, "batch": f"\x9b{factor}"})
    return folder


def test_the_rows_of_a_dump_are_the_same_in_every_format(dumps: Path) -> None:
    table, json, csv_text, markdown = (reading("show a.npz", dumps, "--format", each).output for each in FORMATS)
    rows = gradscope("show", "a.npz", "--json", folder=dumps).json["rows"]
    assert json == gradscope("show", "a.npz", "--json", folder=dumps).output
    families = {family: names for values, names in NAMES.items() for family in (values, f"{values}_grad")}
    assert {(row["family"], row["name"]) for row in rows} == {
        (family, name) for family, names in families.items() for name in names
    }
    read = list(csv.DictReader(io.StringIO(csv_text)))
    assert [(row["name"], row["rms"]) for row in read] == [(row["name"], repr(row["rms"])) for row in rows]
    names = [name for part in NAMES.values() for name in part]
    assert [line.split()[0] for line in table.splitlines() if line.split(" ")[0] in names] == names
    assert re.findall(r"^\| `([^`]+)` \|", markdown, re.MULTILINE) == names


def test_the_rows_of_a_comparison_are_the_same_in_every_format(dumps: Path) -> None:
    texts = {each: reading("compare a.npz b.npz", dumps, "--all", "--format", each) for each in FORMATS}
    assert {done.status for done in texts.values()} == {1}
    rows = texts["json"].json["rows"]
    read = list(csv.DictReader(io.StringIO(texts["csv"].output)))
    assert [(row["family"], row["name"], row["status"]) for row in read] == [
        (row["family"], row["name"], row["status"]) for row in rows
    ]
    for name in {row["name"] for row in rows}:
        count = sum(row["name"] == name for row in rows)
        assert (
            len(re.findall(rf"^{re.escape(name)} +(?:same|different) ", texts["table"].output, re.MULTILINE)) == count
        )
        assert texts["markdown"].output.count(f"| `{name}` | ") == count


@pytest.mark.parametrize(
    ("command", "other"),
    [("show a.npz", "csv"), ("compare a.npz b.npz", "junit"), ("inspect linear_regression", "model-explorer")],
)
def test_two_formats_are_refused(dumps: Path, command: str, other: str) -> None:
    done = gradscope(*command.split(), "--json", "--format", other, folder=dumps)
    assert (done.status, done.output) == (2, "")
    assert f"--json and --format {other} are two formats" in done.errors


def test_json_has_the_documented_keys(dumps: Path) -> None:
    shown = gradscope("show", "a.npz", "--json", folder=dumps).json
    assert (shown["schema"], shown["command"], shown["dump"]) == (1, "show", "a.npz")
    keys = {"schema", "command", "dump", "loss", "rows", "findings", "ledger", "timings", "provenance"}
    assert keys <= set(shown)
    assert {"name", "family", "shape", "dtype", "rms", "source"} <= set(shown["rows"][-1])
    assert shown["ledger"]["captured"] == len(shown["rows"])
    assert set(shown["timings"]) == {"trace", "compile", "initialise", "run", "explain", "write"}
    compared = gradscope("compare", "a.npz", "b.npz", "--json", folder=dumps).json
    assert set(compared) == {
        "schema", "command", "verdict", "sentence", "first_divergence", "losses", "rows", "provenance_differences"
    }  # fmt: skip
    assert (compared["verdict"], compared["first_divergence"]["forward"]) == ("different", "first")
    assert {"name", "family", "status", "matched_by", "rel_l2", "tolerance"} <= set(compared["rows"][0])
    assert "seed" in [difference["field"] for difference in compared["provenance_differences"]]


def test_a_pipe_gets_everything_and_no_escapes(dumps: Path) -> None:
    for command, status in READING.items():
        done = reading(command, dumps)
        assert (done.status, done.errors) == (status, ""), command
        assert "\x1b" not in done.output
        assert "hidden at this width" not in done.output
    assert "model.py:20" in reading("show a.npz", dumps).output


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_gets_what_fits_and_a_note_about_the_rest(dumps: Path, columns: int) -> None:
    done = in_terminal("show", "a.npz", "--full", folder=dumps, columns=columns)
    assert done.status == 0
    assert "\x1b[1m" in done.output
    assert max(map(cell_len, done.plain.splitlines())) <= columns
    assert ("hidden at this width" in done.plain) is (columns == 80)
    compared = in_terminal("compare", "a.npz", "b.npz", folder=dumps, columns=columns)
    assert compared.status == 1
    lines = [line for line in compared.plain.splitlines() if not re.search(r"\S{40}", line)]  # words are not torn
    assert max(map(cell_len, lines)) <= columns


def test_a_requested_width_is_the_width(dumps: Path) -> None:
    wide = in_terminal("show", "a.npz", "--full", folder=dumps, columns=40, COLUMNS="200")
    assert "hidden at this width" not in wide.plain
    assert in_terminal("show", "a.npz", folder=dumps, columns=80, COLUMNS="1").status == 0
    assert in_terminal("compare", "a.npz", "b.npz", folder=dumps, columns=80, COLUMNS="1").status == 1
    assert reading("show a.npz", dumps, COLUMNS="1").output == reading("show a.npz", dumps).output


@pytest.mark.slow
def test_a_terminal_that_wants_no_colours_gets_none(dumps: Path) -> None:
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;5;\d+|9[0-7])m")
    assert coloured.search(in_terminal("compare", "a.npz", "b.npz", folder=dumps, columns=80).output)
    assert not coloured.search(in_terminal("compare", "a.npz", "b.npz", folder=dumps, columns=80, NO_COLOR="1").output)
    assert "\x1b" not in in_terminal("compare", "a.npz", "b.npz", folder=dumps, columns=80, TERM="dumb").output


def test_a_stream_of_ascii_gets_ascii(dumps: Path) -> None:
    for command, each in (("show a.npz", "table"), ("compare a.npz b.npz", "markdown")):
        line, status = (*command.split(), "--format", each), READING[command]
        done = gradscope_process(*line, folder=dumps, PYTHONIOENCODING="ascii")
        assert (done.status, done.errors) == (status, "")
        assert done.output.isascii()
    assert gradscope_process("dump", "--help", folder=dumps, PYTHONIOENCODING="ascii").output.isascii()


def test_a_locale_without_utf_8_is_respected(dumps: Path) -> None:
    locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = gradscope_process("show", "a.npz", folder=dumps, **locale)
    assert (done.status, done.errors) == (0, "")
    assert done.output.isascii()
    missing = gradscope_process("verify", "naïve.npz", folder=dumps, **locale)
    assert missing.status == 3
    assert missing.errors.isascii()


def test_a_reader_that_goes_away_is_no_failure(dumps: Path) -> None:
    assert in_shell("$gradscope show a.npz | head -1", dumps).lines == []
    done = in_shell("$gradscope compare a.npz b.npz --json | true", dumps)
    assert done.status in (1, 141)
    assert done.lines == []


@pytest.mark.parametrize("command", ["show a.npz", "compare a.npz b.npz", "verify a.npz", "--help"])
def test_a_full_disk_under_the_output_is_reported_in_a_line(dumps: Path, command: str) -> None:
    done = in_shell(f"$gradscope {command} > /dev/full", dumps)
    assert done.status == 5
    assert done.lines == ["gradscope: error: cannot write to standard output: No space left on device"]


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_cut_short_is_reported(dumps: Path, unbuffered: str) -> None:
    """A disk that takes a part of what is written at once: without a buffer, Python does not write the rest."""
    line = f"PYTHONUNBUFFERED={unbuffered} $gradscope show a.npz --json"
    full_size = len(gradscope("show", "a.npz", "--json", folder=dumps).output)
    assert full_size > 2048
    done = in_shell(f"{largest_file(1)}; {line} > cut.txt", dumps)
    assert (done.status, done.lines[0]) == (5, "gradscope: error: cannot write to standard output: File too large")
    assert (dumps / "cut.txt").stat().st_size < full_size


def test_a_message_is_written_at_once_without_a_buffer(tmp_path: Path) -> None:
    """Also where the process then ends without a last word, as an interrupted one does."""
    code = (
        "import os, sys; from gradscope.cli import standard_streams as s; "
        "s.open_streams(); print(1, file=sys.stderr); os._exit(0)"
    )
    assert in_shell(f"{sys.executable} -P -u -c '{code}'", tmp_path).errors == "1\n"


@pytest.mark.parametrize("option", ["", "-u"])
def test_the_streams_that_python_began_with_stay_open(tmp_path: Path, option: str) -> None:
    """A model may write to them, whatever becomes of `sys.stdout`."""
    code = (
        "import os, sys; from gradscope.cli import standard_streams as s; s.open_streams(); "
        "s.keep_stdout_for_results(); print(1); sys.stdout.flush(); sys.stdout = sys.stderr; "
        "print(2, file=sys.__stdout__, flush=True); print(3, file=sys.__stderr__, flush=True)"
    )
    done = in_shell(f"{sys.executable} -P {option} -c '{code}'", tmp_path)
    assert (done.status, done.output, done.errors) == (0, "1\n", "2\n3\n")


def test_a_program_that_goes_on_may_put_other_streams_in_their_place(tmp_path: Path) -> None:
    code = (
        "import io, sys; from gradscope.cli import standard_streams as s; s.open_streams(); "
        "s.keep_stdout_for_results(); s.end_results(); "
        "sys.stdout, sys.stderr = io.StringIO(), io.StringIO(); "
        "assert (s.stdout(), s.stderr()) == (sys.stdout, sys.stderr)"
    )
    done = in_shell(f"{sys.executable} -P -c '{code}'", tmp_path)
    assert (done.status, done.errors) == (0, "")


def test_closed_streams_change_no_status(dumps: Path) -> None:
    for closing in (">&-", "2>&-", "<&- >&- 2>&-"):
        assert in_shell(f"$gradscope compare a.npz b.npz {closing}", dumps).status == 1
    assert in_shell(f"$gradscope show none.npz {closing}", dumps).status == 3


@pytest.mark.slow
def test_closed_streams_do_not_lend_their_number_to_the_dump(dumps: Path, tmp_path: Path) -> None:
    line = f"$gradscope dump {dumps / 'model.py'} -o dump.npz"
    assert in_shell(f"{line} <&- >&- 2>&-", tmp_path).status == 0
    assert gradscope("compare", dumps / "a.npz", "dump.npz", "--bitwise", folder=tmp_path).status == 0


@pytest.mark.parametrize("command", ["show a.npz", "compare a.npz b.npz --all"])
def test_names_from_an_untrusted_dump_control_nothing(hostile: Path, command: str) -> None:
    for each in FORMATS:
        shown = in_terminal(*command.split(), "--format", each, folder=hostile, columns=120)
        assert not CONTROLS.search(shown.plain), each
    table = reading(command, hostile).output
    assert not CONTROLS.search(table)
    for name in ("block[0].attn[q]", "[red]x[/red]", "[/0]", r"\x1b[2J\x1b]0;title\x07name", r"\u202eover"):
        assert f"\n{name} " in table


def test_messages_about_an_untrusted_dump_control_nothing(hostile: Path) -> None:
    for command in ("show a.npz --select li", "show a.npz --tensor over", "verify a.npz"):
        done = reading(command, hostile)
        assert not CONTROLS.search(done.output + done.errors)


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_and_leaves_no_trace(dumps: Path, tmp_path: Path) -> None:
    model = dumps / "model.py"
    shown = terminal_process("dump", model, "--families", "param", folder=tmp_path, columns=100)
    assert shown.status == 0
    before, _, after = shown.output.partition("\x1b[1A\x1b[2K")
    assert "looking into gradients that are zero" in before
    assert after == in_terminal("show", "model.npz", "--full", folder=tmp_path, columns=100).output
    quiet = in_terminal("dump", model, "--families", "param", "--force", "-q", folder=tmp_path, columns=100)
    assert "tracing" not in quiet.output
