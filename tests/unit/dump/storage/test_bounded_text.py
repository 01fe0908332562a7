"""A text file is read whole or refused, and never further than its limit: a device may have no end."""

from __future__ import annotations

import os
import pty
import threading
import time
from pathlib import Path

import pytest

from gradscope.comparison.judging.tolerance_rules import read_rules
from gradscope.comparison.pairing.map_file import read_map
from gradscope.dump.storage import bounded_text as module
from gradscope.dump.storage.bounded_text import bounded_text
from gradscope.errors import DumpError, MachineError
from gradscope.tracing.data.renaming.key_map import read_key_map
from tests.support.permissions import forbid


def test_a_text_of_the_limit_is_read_and_a_longer_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("é" * 4)
    assert bounded_text(path, 8) == "é" * 4
    with pytest.raises(OSError, match="too large"):
        bounded_text(path, 7)


@pytest.mark.parametrize("read", [read_rules, read_map, read_key_map])
def test_a_file_without_end_is_refused(read: object) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    assert callable(read)
    with pytest.raises(DumpError, match="too large"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize("read", [read_rules, read_map, read_key_map])
def test_a_fifo_to_which_nothing_writes_is_refused(
    read: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAITING_SECONDS", 0.05)
    os.mkfifo(tmp_path / "fifo")
    assert callable(read)
    with pytest.raises(DumpError, match="no process writes"):
        read(tmp_path / "fifo")


@pytest.mark.parametrize("chunks", [[], [b"a"], [b"a", b"b" * 5000, b"c"]])
@pytest.mark.parametrize("opened_late", [False, True])
def test_a_pipe_and_a_fifo_are_read_to_their_end(chunks: list[bytes], *, opened_late: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    def write() -> None:
        time.sleep(0.05 * opened_late)
        with (tmp_path / "fifo").open("wb", buffering=0) as file:
            for each in chunks:
                time.sleep(0.05)
                file.write(each)

    with_writer = threading.Thread(target=write)
    with_writer.start()
    assert bounded_text(tmp_path / "fifo", 1 << 20).encode() == b"".join(chunks)
    with_writer.join()
    reading, writing = os.pipe()
    os.write(writing, b"".join(chunks))
    os.close(writing)
    assert bounded_text(Path(f"/dev/fd/{reading}"), 1 << 20).encode() == b"".join(chunks)
    os.close(reading)


@pytest.mark.parametrize("read", [read_rules, read_map, read_key_map])
def test_a_file_that_may_not_be_read_is_no_damaged_one(
    read: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("")
    forbid(monkeypatch, tmp_path)
    assert callable(read)
    with pytest.raises(MachineError, match=r"cannot read .*a.txt: Permission denied"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("read", [read_rules, read_map, read_key_map])
def test_a_device_that_has_nothing_to_read_is_not_waited_for(read: object) -> None:
    ours, theirs = pty.openpty()
    assert callable(read)
    with pytest.raises(DumpError, match="nothing to read now"):
        read(Path(os.ttyname(theirs)))
    os.close(ours)
    os.close(theirs)
