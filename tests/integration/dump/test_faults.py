"""The operating system fails at every call that a writer makes of it in turn: nothing is lost, nothing is left."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.dump.verify import verify
from gradscope.errors import MachineError
from tests.support.dumps import litter, read_all, record, write

CALLS = ((os, "open"), (fcntl, "flock"), (os, "pwrite"), (os, "ftruncate"), (os, "fsync"), (os, "replace"))
OLD = [record("old", np.arange(4.0))]
NEW = [record("first", np.arange(5.0)), record("second", np.ones((2, 3), np.float32))]


@contextmanager
def failing(number: int, fault: BaseException) -> Iterator[list[str]]:
    """The operating system raises a fault at its call of a number; yields the names of the calls made."""
    made: list[str] = []

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) == number:
                raise fault
            return call(*arguments, **options)

        return calling

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, wrapped(name, getattr(module, name)))
        yield made


def calls_of_a_write(folder: Path) -> list[str]:
    with failing(0, KeyboardInterrupt()) as made:
        write(folder / "counted.npz", NEW)
    return made


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, None], ids=["full", "broken", "interrupted"])
def test_a_fault_at_any_call_leaves_the_old_dump_or_the_complete_new_one(tmp_path: Path, code: int | None) -> None:
    calls = calls_of_a_write(tmp_path)
    assert {name for _, name in CALLS} == set(calls)
    path = tmp_path / "dump.npz"
    old = write(path, OLD).read_bytes()
    for number, name in enumerate(calls, start=1):
        path.write_bytes(old)
        expected: type[BaseException] = KeyboardInterrupt if code is None else MachineError
        fault = KeyboardInterrupt() if code is None else OSError(code, "?")
        # What is to be replaced is opened first, only to save time.
        if code is not None and calls[number - 1 : number + 1] == ["open", "replace"]:
            with failing(number, fault):
                write(path, NEW)
            assert read_all(path).keys() == {"activation/first", "activation/second"}
            continue
        with failing(number, fault), pytest.raises(expected) as raised:
            write(path, NEW)
        replaced = "replace" in calls[: number - 1]
        assert list(read_all(path)) == (["activation/first", "activation/second"] if replaced else ["activation/old"])
        assert replaced or path.read_bytes() == old
        assert litter(tmp_path) == [], f"call {number}, {name}"
        if code is not None:
            assert str(path) in str(raised.value)
            assert os.strerror(code) in str(raised.value)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_call = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: system_call(file, data[:7], offset))
    path = write(tmp_path / "dump.npz", NEW)
    monkeypatch.undo()
    assert path.read_bytes() == write(tmp_path / "plain.npz", NEW).read_bytes()


def test_a_folder_that_cannot_be_synced_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_call = os.fsync

    def refuse_folders(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").is_dir():
            raise OSError(errno.EINVAL, "?")
        system_call(file)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    assert verify(write(tmp_path / "dump.npz", NEW)).tensors == 2


def test_a_file_that_may_not_grow_leaves_the_old_dump(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz", OLD)
    old = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MachineError, match="File too large"):
            write(path, [record("large", np.zeros(1 << 18))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == old
    assert litter(tmp_path) == []
