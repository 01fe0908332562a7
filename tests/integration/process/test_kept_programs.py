"""Compiled programs that a command is likely to need are loaded before JAX requests them, and are what it requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.cli.running.starting_jax.kept_programs import ProgramFiles, _Expected, load_named_programs
from gradscope.cli.running.starting_jax.program_notes import ProgramNotes
from tests.integration import models
from tests.integration.command import TIMEOUT, gradscope_process


#: Options as XLA has them: they can be written, and read again.
class Options:
    def __init__(self, text: bytes = b"options") -> None:
        self.text = text

    def SerializeAsString(self) -> bytes:
        return self.text

    @classmethod
    def ParseFromString(cls, text: bytes) -> Options:
        return cls(text)


class Cache:
    """It loads a program by its name, and knows which thread has loaded which."""

    def __init__(self, missing: str = "") -> None:
        self.loaded: list[tuple[str, bytes, str]] = []
        self.missing = missing

    def load(self, name: str, options: Options, *place: str) -> tuple[object, object]:
        self.loaded.append((name, options.text, threading.current_thread().name))
        if name == self.missing:
            raise OSError(name)
        return (name, place), 1


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gradscope").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def expected(cache: Cache, noted: dict[str, bytes]) -> _Expected:
    notes = ProgramNotes(["model.py"])
    notes.write(noted)
    return _Expected(cache.load, notes)


def test_noted_programs_are_loaded_by_a_thread_at_the_first_request() -> None:
    cache = Cache()
    programs = expected(cache, {"b": b"options", "c": b"others"})
    assert programs.load("a", Options(), "cpu") == (("a", ("cpu",)), 1)
    assert programs.load("b", Options(), "cpu") == (("b", ("cpu",)), 1)
    assert programs.load("c", Options(b"others"), "cpu") == (("c", ("cpu",)), 1)
    threads = {name: thread for name, _, thread in cache.loaded}
    assert len(cache.loaded) == 3
    assert threads["b"] == threads["c"] != threads["a"] == threading.current_thread().name


@pytest.mark.parametrize(("options", "place"), [(Options(b"others"), "cpu"), (Options(), "gpu")])
def test_a_program_is_used_for_what_it_was_loaded_for(options: Options, place: str) -> None:
    cache = Cache()
    programs = expected(cache, {"b": b"options"})
    programs.load("a", Options(), "cpu")
    assert programs.load("b", options, place) == (("b", (place,)), 1)
    assert ("b", options.text, threading.current_thread().name) in cache.loaded


def test_a_program_for_other_devices_than_the_first_is_not_expected() -> None:
    """XLA ends the process where a program for two devices is loaded for one."""
    programs = expected(Cache(), {})
    for name, place in (("a", "1 device"), ("b", "2 devices"), ("c", "1 device")):
        programs.load(name, Options(), place)
        programs.note(name)
    assert ProgramNotes(["model.py"]).read().keys() == {"a", "c"}


def test_what_fails_early_fails_where_jax_requests_it() -> None:
    programs = expected(Cache(missing="b"), {"b": b"options"})
    programs.load("a", Options(), "cpu")
    with pytest.raises(OSError, match="b"):
        programs.load("b", Options(), "cpu")


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}", '{"COMMAND": 3}', '{"COMMAND": {"a": 3, "b": "x", "c": "6f"}}'])
def test_notes_that_nobody_wrote_are_read_as_far_as_they_are_notes(tmp_path: Path, text: str) -> None:
    ProgramNotes(["model.py"]).write({"a": b"o"})
    (path,) = (tmp_path / "gradscope").iterdir()
    (command,) = json.loads(path.read_text())
    path.write_text(text.replace("COMMAND", command))
    assert ProgramNotes(["model.py"]).read() == ({"c": b"o"} if "6f" in text else {})


def test_notes_that_are_no_file_are_none(tmp_path: Path) -> None:
    ProgramNotes(["model.py"]).write({"a": b"o"})
    (path,) = (tmp_path / "gradscope").iterdir()
    path.unlink()
    os.mkfifo(path)
    assert not ProgramNotes(["model.py"]).read()


def test_an_edited_file_has_other_programs_and_so_have_other_options(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    ProgramNotes(["model.py:make", 3]).write({"a": b"o"})
    assert ProgramNotes(["model.py:make", 3]).read() == {"a": b"o"}
    assert not ProgramNotes(["model.py:make", 4]).read()
    (tmp_path / "model.py").write_text("make = 3")
    assert not ProgramNotes(["model.py:make", 3]).read()


def test_the_oldest_notes_are_dropped() -> None:
    for number in range(40):
        ProgramNotes([number]).write({"a": b"o"})
    noted = [bool(ProgramNotes([number]).read()) for number in range(40)]
    assert noted == [False] * 8 + [True] * 32


@pytest.fixture
def files(tmp_path: Path) -> ProgramFiles:
    """The files of the programs a and b, as a command wrote them."""
    files = ProgramFiles(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}-cache").write_bytes(name.encode())
        files.sign(name)
    return files


def swapped(folder: Path) -> None:
    (folder / "b-cache").replace(folder / "a-cache")
    (folder / "b-digest").replace(folder / "a-digest")


def damaged(folder: Path) -> None:
    (folder / "a-cache").write_bytes(b"A")


def of_nobody(folder: Path) -> None:
    (folder / "a-digest").unlink()


def pipes(folder: Path) -> None:
    for name in ("a-cache", "a-digest"):
        (folder / name).unlink()
        os.mkfifo(folder / name)


def a_link(folder: Path) -> None:
    (folder / "a-cache").rename(folder / "elsewhere")
    (folder / "a-cache").symlink_to("elsewhere")


@pytest.mark.parametrize("spoil", [swapped, damaged, of_nobody, pipes, a_link])
def test_only_the_file_that_was_written_for_a_program_is_loaded(
    files: ProgramFiles, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    assert all(map(files.is_sound, ("a", "b", "not there")))
    spoil(tmp_path)
    assert not files.is_sound("a")
    assert not os.path.lexists(tmp_path / "a-cache"), "JAX writes it again"
    (tmp_path / "a-cache").write_bytes(b"a")
    if spoil is not pipes:
        files.sign("a")
        assert files.is_sound("a")


def test_a_command_runs_no_program_that_is_another_one_and_waits_for_no_pipe(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    dump = ("dump", "model.py", "-o", "a.npz", "--force")
    assert gradscope_process(*dump, folder=tmp_path).status == 0
    paths = sorted((tmp_path / "gradscope/compiled").glob("*-cache"))
    contents = [path.read_bytes() for path in paths]
    own = tmp_path / "own"
    own.mkdir()
    for path, other in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(other)
        os.mkfifo(own / path.name)
    assert len({*contents}) > 1
    for environment in ({}, {"JAX_COMPILATION_CACHE_DIR": str(own)}):
        again = gradscope_process(*dump, folder=tmp_path, **environment)
        assert (again.status, "error" in again.errors) == (0, False)


class _Program:
    """A compiled program of a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def hlo_modules(self) -> list[_Program]:
        return [self]


def test_of_a_cache_of_ones_own_a_program_of_another_name_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {"jit_f-1a": _Program("jit_f"), "jit_g-1a": _Program("jit_f"), "jit_a_b-1a": _Program("jit_a.b"),
                "jit_é-1a": _Program("jit___")}  # fmt: skip
    cache = SimpleNamespace(get_executable_and_time=lambda name, *_: (programs.get(name), 1))
    monkeypatch.setitem(sys.modules, "jax._src.compilation_cache", cache)
    load_named_programs(tmp_path)
    assert cache.get_executable_and_time("jit_f-1a", "options") == (programs["jit_f-1a"], 1)
    assert cache.get_executable_and_time("jit_a_b-1a", "options") == (programs["jit_a_b-1a"], 1)
    assert cache.get_executable_and_time("jit_é-1a", "options") == (programs["jit_é-1a"], 1)
    assert cache.get_executable_and_time("none-1a", "options") == (None, 1)
    assert capsys.readouterr().err == ""
    assert cache.get_executable_and_time("jit_g-1a", "options") == (None, None)
    assert f"{tmp_path}/jit_g-1a-cache has the program jit_f, and is not used" in capsys.readouterr().err


#: Runs a command that takes every program for one that is worth noting, and prints which were there before JAX asked.
TWICE = """
import sys
from gradscope.cli.running.starting_jax import kept_programs
from gradscope.cli.main import main

kept_programs._LOADED_SECONDS = kept_programs._COMPILED_SECONDS = 0
begin = kept_programs._Expected._begin
def counted(self, parsed):
    begin(self, parsed)
    print("expected", len(self._loading), file=sys.stderr)
kept_programs._Expected._begin = counted
sys.argv[1:] = ["dump", "mlp", "--json", *sys.argv[1:]]
main()
"""


def test_the_second_run_of_a_command_loads_early_what_the_first_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    command, dumps = [sys.executable, "-P", "-c", TWICE], []
    for more in ([], ["-o", "b.npz", "--stats-only"]):
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert done.returncode == 0, done.stderr
        dumps.append((done.stderr.splitlines(), json.loads(done.stdout)["rows"]))
    (first, rows), (second, same) = dumps
    assert "expected 0" in first
    assert re.search(r"^expected [1-9]", "\n".join(second), re.MULTILINE)
    assert rows == same


def test_a_jax_whose_options_are_others_loads_what_it_requests() -> None:
    notes = ProgramNotes(["model.py"])
    notes.write({"b": b"options"})
    programs = _Expected(lambda name, _options, *place: ((name, place), 1), notes)
    assert programs.load("b", object(), "cpu") == (("b", ("cpu",)), 1)
    programs.note("c")
    assert notes.read() == {"b": b"options"}
