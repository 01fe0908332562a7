"""Files that belong together are those of one writer, however many write to their folder at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradscope.dump.storage.writing import companions
from gradscope.dump.storage.writing.atomic_folder import write_folder
from gradscope.dump.storage.writing.companions import alone_in, write_together
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.errors import MachineError, UsageError

NAMES = ("arrays.npz", "script.py")


def files(folder: Path, data: bytes) -> dict[Path, bytes]:
    return {folder / name: data for name in NAMES}


def test_a_second_writer_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins while the script is aside and half of the files are new."""
    write_together(files(tmp_path, b"old"), replace=False)
    publish, second = PartialFile.publish, threading.Event()

    def published(self: PartialFile, target: Path, size_bytes: int, *, replace: bool) -> None:
        publish(self, target, size_bytes, replace=replace)
        if not second.is_set():
            second.set()
            running.append(pool.submit(write_together, files(tmp_path, b"second"), replace=True))
            with pytest.raises(TimeoutError):
                running[0].result(timeout=0.1)

    monkeypatch.setattr(PartialFile, "publish", published)
    running = []
    with ThreadPoolExecutor(1) as pool:
        write_together(files(tmp_path, b"first"), replace=True)
        running[0].result(timeout=5)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(NAMES, b"second")


def test_a_writer_that_is_not_done_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "WAITING_SECONDS", 0.05)
    with alone_in(tmp_path, waiting=0), pytest.raises(UsageError, match="another process writes to "):
        write_together(files(tmp_path, b"new"), replace=True)
    assert [*tmp_path.iterdir()] == []


def test_an_error_names_the_folder_that_is_asked_for(tmp_path: Path) -> None:
    """It is made under another name, of which nobody has heard."""
    target = tmp_path / "repro"
    with pytest.raises(MachineError, match=rf"^cannot write to {target}/{'x' * 300}: File name too long"):
        write_folder(target, {"x" * 300: b""})
    assert [*tmp_path.iterdir()] == []
