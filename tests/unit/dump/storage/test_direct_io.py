"""Pages that are written past the system's cache are those of the file, and what fails there goes through the cache."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from gradscope.dump.storage.writing import direct_io
from gradscope.dump.storage.writing.direct_io import DirectWriter
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.errors import MachineError

PAGE: Final = mmap.PAGESIZE
LEAST: Final = 4 * PAGE


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that every file system takes stands for direct I/O, which some lack."""
    monkeypatch.setattr(direct_io, "_DIRECT", os.O_DSYNC)
    monkeypatch.setattr(direct_io, "_LEAST_BYTES", LEAST)


def drawn(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def written(path: Path, pieces: list[bytes], first: int) -> bytes:
    """Writes pieces one behind the other from an offset on, and returns what is there."""
    file = PartialFile(path)
    file.create()
    offset = first
    file.write(memoryview(bytes(first)), 0)
    for piece in pieces:
        file.write(memoryview(piece), offset)
        offset += len(piece)
    file.write(memoryview(b"crc"), 1)  # as the writer of a member does behind its data
    file.publish(path, offset, replace=True)
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize("first", [4, PAGE - 1, PAGE, PAGE + 64])
@pytest.mark.parametrize("sizes", [(LEAST,), (LEAST + PAGE - 1, 8 * PAGE, 3), (5, 9 * PAGE + 77, 6 * PAGE + 1)])
def test_the_file_has_every_byte_at_its_place(tmp_path: Path, sizes: tuple[int, ...], first: int) -> None:
    pieces = [drawn(size) for size in sizes]
    found = written(tmp_path / "file", pieces, first)
    assert (found[1:4], found[first:]) == (b"crc", b"".join(pieces))


def test_only_whole_pages_are_written_and_few_of_them_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(20 * PAGE))
    writer, data = DirectWriter(path), drawn(10 * PAGE)
    assert writer.write(memoryview(data), PAGE + 10) == (PAGE - 10, 10 * PAGE - 10)
    assert writer.write(memoryview(data)[: LEAST + PAGE - 2], 1) == (0, 0)
    writer.close()
    begin, end = 2 * PAGE, 11 * PAGE
    assert path.read_bytes() == bytes(begin) + data[PAGE - 10 : 10 * PAGE - 10] + bytes(20 * PAGE - end)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no direct I/O")
def test_the_real_flag_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "_DIRECT", os.O_DIRECT)
    pieces = [drawn(size) for size in (70 * PAGE + 5, 3, 40 * PAGE)]
    assert written(tmp_path / "file", pieces, 100)[100:] == b"".join(pieces)


def test_a_system_without_direct_io_writes_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "_DIRECT", 0)
    assert DirectWriter(tmp_path / "absent").write(memoryview(drawn(LEAST)), 0) == (0, 0)


def refusing(code: int, calls: list[int]) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        calls.append(code)
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path, data, calls = tmp_path / "file", drawn(2 * LEAST), list[int]()
    file = PartialFile(path)
    file.create()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing(code, calls))
        for number in range(3):
            file.write(memoryview(data), number * len(data))
    file.publish(path, 3 * len(data), replace=True)
    file.close()
    assert (path.read_bytes(), calls) == (3 * data, [code])


def test_a_full_disk_is_reported_by_the_write_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PartialFile(tmp_path / "file")
    file.create()
    calls = list[int]()
    monkeypatch.setattr(os, "pwrite", refusing(errno.ENOSPC, calls))
    with pytest.raises(MachineError, match="No space left"):
        file.write(memoryview(drawn(LEAST)), 0)
    assert len(calls) == 2
    file.discard()
    file.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, data = os.pwrite, drawn(8 * PAGE)
    monkeypatch.setattr(os, "pwrite", lambda descriptor, buffer, at: pwrite(descriptor, buffer[: PAGE + 100], at))
    assert written(tmp_path / "file", [data], 9)[9:] == data


def test_a_slow_disk_is_written_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(direct_io, "_KNOWN_AFTER", 3 * LEAST)
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    writer, data = DirectWriter(path), memoryview(drawn(LEAST))
    ends = [writer.write(data, number * LEAST)[1] for number in range(5)]
    writer.close()
    assert ends == [LEAST, LEAST, LEAST, 0, 0]
