"""The flusher syncs written bytes early, and the final sync still reports every error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradscope.dump.storage.writing.flushing import Flusher
from gradscope.dump.storage.writing.partial_file import PartialFile

SECONDS = 30


class Disk:
    """Replaces the system's sync; counts calls, and raises an error if it has one."""

    def __init__(self, error: OSError | None = None) -> None:
        self.synced = threading.Semaphore(0)
        self._error = error

    def sync(self, descriptor: int) -> None:
        os.fstat(descriptor)  # it is open
        self.synced.release()
        if self._error is not None:
            raise self._error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(getattr(request, "param", None))
    monkeypatch.setattr("gradscope.dump.storage.writing.flushing._sync", made.sync)
    monkeypatch.setattr("gradscope.dump.storage.writing.flushing._STEP_BYTES", 10)
    yield made
    for thread in flushers():
        thread.join(SECONDS)


def flushers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gradscope-flusher"]


def test_every_full_step_is_flushed_while_the_file_is_open(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "file"
    path.touch()
    flusher = Flusher(path)
    for _ in range(2):
        flusher.wrote(9)
        assert not disk.synced.acquire(blocking=False)
        flusher.wrote(1)
        assert disk.synced.acquire(timeout=SECONDS)
    flusher.stop()


def test_less_than_a_step_starts_no_thread(tmp_path: Path, disk: Disk) -> None:
    flusher = Flusher(tmp_path / "file")
    flusher.wrote(9)
    assert not flushers()


def test_its_thread_ends_when_it_is_stopped(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "file"
    path.touch()
    flusher = Flusher(path)
    flusher.wrote(10)
    (thread,) = flushers()
    flusher.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()
    flusher.wrote(10)
    assert not flushers()


@pytest.mark.parametrize("disk", [OSError("the disk is on fire")], indirect=True)
def test_an_error_of_a_flush_is_left_to_the_final_sync(tmp_path: Path, disk: Disk) -> None:
    target = tmp_path / "file"
    partial = PartialFile(target)
    partial.create()
    partial.write(memoryview(b"0123456789"), 0)
    assert disk.synced.acquire(timeout=SECONDS)
    partial.publish(target, 10, replace=True)
    partial.close()
    assert target.read_bytes() == b"0123456789"
