"""Every command once in a process of its own: what it prints and writes there is what the other tests see of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jax._src import compilation_cache

from gradscope.cli.commands import COMMANDS
from tests.integration.command import Finished, gradscope, gradscope_process
from tests.support.sampled import sampled

#: Command lines and their exit statuses, in an order in which each finds what it reads.
LINES = {
    "dump model.py -v": 0,
    "show model.npz": 0,
    "compare model.npz b.npz --json": 1,
    "report model.npz b.npz -o page.html": 0,
    "isolate last model.npz model.py": 0,
    "calibrate model.py -o ref.npz": 0,
    "check model.py": 0,
    "verify model.npz": 0,
    "recover ref.npz -o saved.npz": 0,
    "explain rel_l2": 0,
    "train model.py --steps 2 --every 1 --optimizer sgd(0.1) -o run --json": 0,
    "watch run --json": 0,
    "export run --to csv -o run.csv": 0,
    "show none.npz": 3,
}

#: The commands that a line may be run by, by the name of the folder that it is run in.
PLACES = {"process": gradscope_process, "here": gradscope}

#: What a clock says, and where the folder is.
VARYING = re.compile(
    r"\b(trace|compile|initialise|run|explain|write) <?[\d.]+|[\d,]+ bytes|"
    r"\"timings\": \{[^}]*\}|\"time\": [\d.]+|/\S*/(process|here)\b"
)


def run(command: Callable[..., Finished], folder: Path, dumps: Path) -> dict[str, tuple[Finished, list[str]]]:
    """What each line gives in a folder, and the names that are there afterwards."""
    folder.mkdir()
    for name in ("model.py", "b.npz"):
        shutil.copyfile(dumps / name, folder / name)
    return {
        line: (command(*line.split(), folder=folder), sorted(path.name for path in folder.iterdir())) for line in LINES
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verbs")


@pytest.fixture(scope="module")
def finished(folder: Path, dumps: Path) -> dict[str, dict[str, tuple[Finished, list[str]]]]:
    return {place: run(command, folder / place, dumps) for place, command in PLACES.items()}


@sampled("line", LINES)
def test_a_process_of_its_own_gives_what_this_one_gives(
    finished: dict[str, dict[str, tuple[Finished, list[str]]]], line: str
) -> None:
    (one, files), (other, same_files) = finished["process"][line], finished["here"][line]
    assert (one.status, other.status) == (LINES[line], LINES[line]), one.errors + other.errors
    assert files == same_files
    for text, same_text in ((one.output, other.output), (one.errors, other.errors)):
        assert VARYING.sub("", text) == VARYING.sub("", same_text)


def test_no_command_is_left_out() -> None:
    elsewhere = {"inspect", "mesh"}  # `test_endings` and `test_mesh` have these in processes
    assert {line.split()[0] for line in LINES} | elsewhere == set(COMMANDS)


def test_the_dumps_are_the_same_to_the_last_bit(folder: Path, finished: object) -> None:
    assert gradscope("compare", "process/model.npz", "here/model.npz", "--bitwise", folder=folder).status == 0


def test_a_command_that_ran_here_leaves_the_cache_of_programs_as_it_was(dumps: Path, tmp_path: Path) -> None:
    before = compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time
    assert gradscope("dump", dumps / "model.py", folder=tmp_path).status == 0
    assert (compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time) == before
