"""The script of a reproduction, whatever its names have in them."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.capturing.isolate.reproducing.reproduction import Reproduction
from gradscope.capturing.isolate.reproducing.reproduction_script import script, write_reproduction
from gradscope.dump.storage.writing import partial_file
from gradscope.errors import MachineError
from tests.support.sampled import sampled


def test_no_name_ends_the_docstring_or_escapes_in_it() -> None:
    name = 'say """; raise SystemExit\n"""\\N{odd}'
    found = Reproduction(
        name=name, source=None, code=(), inputs={"x": np.ones(2)}, origins={"x": "C:\\users"}, cotangents={},
        constants={}, outputs=(), gradients=(),
    )  # fmt: skip
    tree = ast.parse(script(found, file="isolated", dump='odd".npz'))
    docstring = ast.get_docstring(tree)
    assert docstring is not None
    assert "C:\\users" in docstring
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree))


FOUND = Reproduction(
    name="layer", source=None, code=(), inputs={"x": np.ones(2)}, origins={"x": "given"}, cotangents={},
    constants={}, outputs=(), gradients=(),
)  # fmt: skip


def failing_once(call: Callable[..., Any], failing: int) -> Callable[..., Any]:
    """A system call that finds the disk full the time of this number, from 0."""
    numbers = count()

    def fail(*arguments: Any, **named: Any) -> Any:
        if next(numbers) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(*arguments, **named)

    return fail


@pytest.mark.parametrize("call", ["fsync", "pwrite", "link", "ftruncate"])
def test_a_failure_of_any_call_leaves_both_files_as_they_were(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    for failing in count():
        monkeypatch.setattr(os, call, failing_once(real, failing))
        folder = tmp_path / str(failing)
        try:
            write_reproduction(folder, FOUND, file="isolated", dumps=[tmp_path / "a.npz"], force=False)
        except MachineError:
            assert list(tmp_path.iterdir()) == []
        else:
            break
    assert failing >= 2
    assert sorted(path.name for path in folder.iterdir()) == ["isolated.npz", "isolated.py"]


@pytest.mark.parametrize("call", ["fsync", "pwrite", "link", "open", "rename"])
def test_a_new_folder_has_both_files_at_any_time_and_the_next_removes_what_a_dead_one_left(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "repro", getattr(os, call)
    left = partial_file.fresh_path(folder)
    left.mkdir()
    (left / "isolated.npz").touch()

    def look(*arguments: Any, **named: Any) -> Any:
        assert not folder.exists() or len(list(folder.iterdir())) == 2
        return real(*arguments, **named)

    monkeypatch.setattr(os, call, look)
    write_reproduction(folder, FOUND, file="isolated", dumps=[tmp_path / "a.npz"], force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["repro"]


OTHER = replace(FOUND, name="other", inputs={"x": np.ones(3)})
CALLS = ["fsync", "pwrite", "ftruncate", "rename", "replace", "unlink"]


def pair(folder: Path) -> tuple[str | None, int]:
    """Returns what the script is of, None where there is none, and the length of the array beside it."""
    text = folder / "isolated.py"
    with np.load(folder / "isolated.npz") as arrays:
        length = len(arrays["input/x"])
    return (("other" if "other" in text.read_text().split("\n")[0] else "layer") if text.exists() else None), length


def write_into(folder: Path, found: Reproduction) -> None:
    write_reproduction(folder, found, file="isolated", dumps=[folder / "a.npz"], force=True)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_script_is_at_no_time_beside_the_arrays_of_another(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_into(tmp_path, FOUND)
    real, seen = getattr(os, call), list[tuple[str | None, int]]()

    def look(*arguments: Any, **named: Any) -> Any:
        seen.append(pair(tmp_path))
        done = real(*arguments, **named)
        seen.append(pair(tmp_path))
        return done

    monkeypatch.setattr(os, call, look)
    write_into(tmp_path, OTHER)
    assert {*seen} <= {("layer", 2), (None, 2), (None, 3), ("other", 3)}
    assert pair(tmp_path) == ("other", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["isolated.npz", "isolated.py"]


@sampled("call", CALLS[:-1])
def test_a_failure_in_a_folder_that_exists_leaves_no_mixture(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    for failing in range(3):
        monkeypatch.setattr(os, call, real)
        write_into(tmp_path, FOUND)
        monkeypatch.setattr(os, call, failing_once(real, failing))
        with suppress(MachineError):
            write_into(tmp_path, OTHER)
        assert pair(tmp_path) in {("layer", 2), (None, 3), ("other", 3)}
        assert {path.name for path in tmp_path.iterdir()} <= {"isolated.npz", "isolated.py"}
