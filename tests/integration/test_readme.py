"""README's tour does what it says: its commands and programs run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

README = Path(__file__).parents[2] / "README.md"

#: A marked fenced block: what it is for, the name of the file it is, and its lines.
_BLOCK = re.compile(
    r"^<!-- (tour|tour-python|tour-file: (?P<name>\S+)) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_STATUS = re.compile(r"#.*\bexit (\d+)")

#: Seconds for a command of the tour, which may compile a model.
TIMEOUT = 120


class Step(NamedTuple):
    """One thing that the tour asks its reader to do."""

    kind: str
    text: str
    name: str | None


def steps() -> Iterator[Step]:
    """The commands, programs and files of the tour, in order."""
    for block in _BLOCK.finditer(README.read_text(encoding="utf-8")):
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


def test_the_tour_runs_as_it_is_written(tmp_path: Path) -> None:
    environment = as_users_have_it()
    kinds = set()
    for number, step in enumerate(steps()):
        kinds.add(step.kind)
        if step.name is not None:
            (tmp_path / step.name).write_text(step.text, encoding="utf-8")
            continue
        line, expected = step.text, _STATUS.search(step.text)
        if step.kind == "tour-python":
            (tmp_path / f"step{number}.py").write_text(step.text, encoding="utf-8")
            line, expected = f"python step{number}.py", None
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.returncode == (int(expected[1]) if expected else 0), f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, f"{line} printed nothing"
    assert kinds == {"tour", "tour-python", "tour-file"}


def test_every_option_that_readme_names_is_one() -> None:
    from tests.integration.process.test_start import OPTIONS

    known = {option for options in OPTIONS.values() for option in options.split()} | {"--help", "--version", "--eval"}
    text = re.sub(r"^.*\bpip\b.*$|^.*\bpytest\b.*$", "", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - known == set()
    assert named


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 5, 70, 130])
def test_every_exit_status_is_explained(status: int) -> None:
    assert re.search(rf"^\| {status}\b.*\| \S", README.read_text(encoding="utf-8"), re.MULTILINE)
