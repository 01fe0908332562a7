"""Opens a copy of a history that a process which was killed left in the middle of something.

What SQLite keeps beside the file then has to be taken into it, or what is in the file has to be undone. SQLite would do
so in place, where it may write; a reader changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.unpublished import begun, ended
from gradscope.errors import DumpError

#: How the names of the files end, behind that of the history, that hold a part of it: its log, and its journal.
LOG: Final = "-wal"
JOURNAL: Final = "-journal"
#: The end of the name of the index of the log, which is of use as long as a process has it open.
INDEX: Final = "-shm"

#: How a journal ends that names another file, which SQLite would remove with it. A history has no such journal.
_OTHER_NAMED: Final = bytes.fromhex("d9d505f920a163d7")

#: How often it is copied where it changes meanwhile.
_TRIES: Final = 5
_CHUNK_BYTES: Final = 1 << 20


def beside(path: Path) -> dict[str, os.stat_result]:
    """Returns what there is of the files that SQLite keeps beside a history, by the end of the name.

    Raises:
        DumpError: One of them is no regular file: opening a FIFO would wait for ever.
    """
    found: dict[str, os.stat_result] = {}
    for suffix in (LOG, INDEX, JOURNAL):
        with suppress(FileNotFoundError):
            found[suffix] = path.with_name(f"{path.name}{suffix}").lstat()
            if not stat.S_ISREG(found[suffix].st_mode):
                raise DumpError(f"its {path.name}{suffix} is not a regular file")
    return found


@contextmanager
def copied(path: Path) -> Generator[Path]:
    """Yields the path of a copy of a history, with what is beside it; it is removed at the end.

    On its first read, SQLite settles it. What has it open by then can go on to read it.

    Raises:
        DumpError: It changes all the time, or its journal names another file.
        MachineError: It cannot be read, or there is no room for the copy.
    """
    for _ in range(_TRIES):
        with machine_errors("copy", path), TemporaryDirectory(prefix="gradscope-") as folder:
            begun(Path(folder))
            try:
                copy = Path(folder) / path.name
                before = _facts(path)
                for suffix in ("", LOG, JOURNAL):
                    with suppress(FileNotFoundError):
                        _copy(path.with_name(f"{path.name}{suffix}"), copy.with_name(f"{path.name}{suffix}"))
                if _facts(path) == before:
                    yield copy
                    return
            finally:
                ended(Path(folder))
    raise DumpError("another process writes to it", hint="wait for it, and try again")


def _facts(path: Path) -> Mapping[str, tuple[int, int, int]]:
    """Returns the files of a history, their sizes and when they were written."""
    found = {"": path.stat(), **beside(path)}
    return {suffix: (each.st_ino, each.st_size, each.st_mtime_ns) for suffix, each in found.items() if suffix != INDEX}


def _copy(source: Path, target: Path) -> None:
    """Copies a file; what has no room on the disk has none in the copy.

    Raises:
        FileNotFoundError: There is none.
        DumpError: It is a journal that names another file.
    """
    source.lstat()
    with InputFile(source) as file, target.open("xb") as copy:
        size = file.size_bytes
        last = min(size, len(_OTHER_NAMED))
        if source.name.endswith(JOURNAL) and file.read(size - last, last) == _OTHER_NAMED:
            raise DumpError("its journal names another file")
        at = 0
        while (at := _data_from(file, at)) < size:
            data = file.read(at, min(_CHUNK_BYTES, size - at))
            copy.seek(at)
            copy.write(data)
            at += len(data)
        copy.truncate(size)


def _data_from(file: InputFile, offset: int) -> int:
    """Returns where a file has data, from an offset on; its size where it has none."""
    try:
        return os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return file.size_bytes
