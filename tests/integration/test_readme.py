"""README and the guides do what they say: commands and programs of a page run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.command import Finished, gradscope, in_terminal, python

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
GUIDES = sorted(REPOSITORY.glob("docs/guides/*.md"))
STATUSES = REPOSITORY / "docs" / "reference" / "cli.md"

#: A marked fenced block: what it is for, the name of the file it is, and its lines.
_BLOCK = re.compile(
    r"^<!-- (tour|tour-python|tour-file: (?P<name>\S+)) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: Frameworks whose programs a page may have, and that the tests of all pages do without.
FRAMEWORKS = ("equinox", "flax", "haiku", "keras")
#: A command, and some lines of what it prints in a terminal of 80 columns.
_PICTURE = re.compile(
    r"^<!-- output: gradscope (?P<arguments>.*) -->\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: A line that is one command of gradscope's, or one program, and needs no shell.
_COMMAND = re.compile(r"gradscope [^|&;<>$]*")
_PROGRAM = re.compile(r"python (\S+\.py)")
_STATUS = re.compile(r"#.*\bexit (\d+)")
#: A library that a program imports.
_IMPORT = re.compile(r"^import (\w+)", re.MULTILINE)

#: Seconds for a command of the tour, which may compile a model.
TIMEOUT = 120


class Step(NamedTuple):
    """One thing that a page asks its reader to do."""

    kind: str
    text: str
    name: str | None


def steps(page: Path) -> Iterator[Step]:
    """The commands, programs and files of a page, in order."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, name, text = block[1].partition(":")[0], block["name"], block["text"]
        if kind == "tour":
            yield from (
                Step(kind, line.removeprefix("$ "), None) for line in text.splitlines() if line.startswith("$ ")
            )
        else:
            yield Step(kind, text, name)


def as_users_have_it() -> dict[str, str]:
    """This environment with the installed commands on the path, and without the strictness that tests put on JAX."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY_")}
    return {**ours, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("page", [README, *GUIDES], ids=lambda page: page.stem)
def test_a_page_runs_as_it_is_written(page: Path, tmp_path: Path) -> None:
    for number, step in enumerate(steps(page)):
        if step.name is not None:
            (tmp_path / step.name).write_text(step.text, encoding="utf-8")
            continue
        line, expected = step.text, _STATUS.search(step.text)
        if step.kind == "tour-python" and is_of_absent_framework(step.text):  # tests/zoo runs it where there is one
            continue
        if step.kind == "tour-python":
            (tmp_path / f"step{number}.py").write_text(step.text, encoding="utf-8")
            line, expected = f"python step{number}.py", None
        done = run(line, tmp_path)
        assert done.status == (int(expected[1]) if expected else 0), f"{line}\n{done.output}\n{done.errors}"
        assert done.output, f"{line} printed nothing"
        if step.kind == "tour-python":  # who tries an example tries it twice
            again = run(line, tmp_path)
            assert again.status == 0, f"{line}\n{again.output}\n{again.errors}"


def is_of_absent_framework(program: str) -> bool:
    """Whether a program of a page needs a framework that is not installed."""
    return any(each in FRAMEWORKS and find_spec(each) is None for each in _IMPORT.findall(program))


def run(line: str, folder: Path) -> Finished:
    """Run a line, here where it needs no shell; `test_verbs` holds that to what processes of their own give."""
    *before, last = line.split(" && ")
    for each in before:
        if (done := run(each, folder)).status:
            return done
    if _COMMAND.fullmatch(last):
        return gradscope(*shlex.split(last, comments=True)[1:], folder=folder)
    if program := _PROGRAM.fullmatch(last):
        return python(folder / program[1], folder=folder)
    return in_users_shell(last, folder)


def in_users_shell(line: str, folder: Path) -> Finished:
    """Run a line in a shell that has the installed commands on its path."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=as_users_have_it(), capture_output=True, text=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip
    return Finished(status=done.returncode, output=done.stdout, errors=done.stderr)


def test_the_tour_has_steps_of_every_kind() -> None:
    assert {step.kind for step in steps(README)} == {"tour", "tour-python", "tour-file"}


def test_the_picture_is_what_the_command_prints(tmp_path: Path) -> None:
    (picture,) = _PICTURE.finditer(README.read_text(encoding="utf-8"))
    for page in GUIDES:
        for step in steps(page):
            if step.name == picture["arguments"].split()[-1]:
                (tmp_path / step.name).write_text(step.text, encoding="utf-8")
    done = in_terminal(*picture["arguments"].split(), folder=tmp_path, columns=80)
    printed = {without_numbers(line) for line in done.plain.splitlines()}
    assert [line for line in picture["text"].splitlines() if without_numbers(line) not in printed] == []


def without_numbers(line: str) -> str:
    """A line without what another version of XLA may round otherwise."""
    return re.sub(r"\d+(\.\d+)?", "0", line)


def test_every_option_that_a_page_names_is_one() -> None:
    from tests.integration.process.test_start import OPTIONS

    known = {option for options in OPTIONS.values() for option in options.split()} | {"--help", "--version", "--eval"}
    known |= {f"--no-{option.removeprefix('--')}" for option in ("--state-updates", "--check-numerics")}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (README, *REPOSITORY.glob("docs/**/*.md")))
    foreign = r"^.*\b(?:pip|pytest)\b.*$|`(?:tensorboard |scripts/)[^`]*`|^\$ tensorboard .*$"
    text = re.sub(foreign, "", pages, flags=re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - known == {"--install-completion"}


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 5, 70, 130])
def test_every_exit_status_is_explained(status: int) -> None:
    assert re.search(rf"^\| {status}\b.*\| \S", STATUSES.read_text(encoding="utf-8"), re.MULTILINE)
