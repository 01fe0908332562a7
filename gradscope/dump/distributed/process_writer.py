"""Writing a dump of several processes: each writes its shards into a file of its own, the first an index at last.

No process waits for another before its own file is on the disk, so that one that dies takes nothing along.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from gradscope.dump.distributed.index import ProcessIndex, write_index
from gradscope.dump.distributed.process_reader import open_process_file
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import INDEX, ProcessPlace, Record
from gradscope.dump.storage.storage_errors import located, machine_errors
from gradscope.dump.writer import DumpWriter
from gradscope.errors import UsageError
from gradscope.naming import key_of, printable
from gradscope.protocols import implements

#: Makes the manifest of the whole: of the outline of its entries, and of every process's manifest.
Merge: TypeAlias = Callable[[Sequence[Entry], Sequence[Manifest]], Manifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What a process has to know of the others.

    Attributes:
        place: Which of how many it is.
        meet: Waits until every process has called it.
        merge: See `Merge`.
    """

    place: ProcessPlace
    meet: Callable[[], None]
    merge: Merge


class ProcessWriter:
    """One process's `RecordSink`. Records with a `shard` go into its file; others outline the entries of the whole.

    Every process adds the same outline in the same order: aliases, absences, and each tensor that has shards. All of
    them see the same folder.

    Args:
        folder: The dump; made if it is not there.
        together: What to know of the other processes.
        force: Whether a dump that is there may be replaced.

    Raises:
        UsageError: There is a dump, or the path is no folder's.
        MachineError: The folder cannot be made or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], together: Together, *, force: bool = False) -> None:
        self._folder = Path(folder)
        self._together = together
        self._outline: list[Entry] = []
        _require_folder(self._folder, force=force)
        self._file = DumpWriter(self._folder / together.place.file_name, force=force)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, traceback)

    @implements(RecordSink)
    def require_space(self, size_bytes: int) -> None:
        # All processes may write to one disk: each looks for the room that it needs itself.
        self._file.require_space(size_bytes)

    @implements(RecordSink)
    def add(self, record: Record) -> Entry:
        """Write a shard to this process's file, or add a whole tensor to the outline.

        Raises:
            UsageError: It has a tensor and is no shard, or cannot be stored.
            MachineError: The disk is full or fails.
        """
        if record.shard is not None:
            return self._file.add(record)
        if record.array is not None:
            raise UsageError(f"{printable(key_of(record.family, record.name))} is not said to be a shard")
        self._outline.append(Entry.of(record))
        return self._outline[-1]

    @implements(RecordSink)
    def commit(self, facts: RunFacts) -> Manifest:
        """Make a dump of the records of all processes; returns, in every process, when the dump is complete.

        Args:
            facts: What is known of the run as a whole, as far as this process knows it.

        Returns:
            The manifest of the whole.

        Raises:
            DumpError: What the processes wrote does not make up a whole.
            MachineError: The disk is full or fails.
        """
        first = self._together.place.index == 0
        if first:
            self._withdraw_index()
        self._file.commit(facts)
        self._together.meet()
        try:
            if first:
                self._write_index()
        finally:
            self._together.meet()
        with open_dump(self._folder) as whole:
            return whole.manifest

    @implements(RecordSink)
    def commit_incomplete(self, error: str, facts: RunFacts) -> Path:
        return self._file.commit_incomplete(error, facts)

    def discard(self) -> None:
        """Remove what this process has written, unless it is committed; as often as one likes, from any thread."""
        self._file.discard()

    def _withdraw_index(self) -> None:
        """From here on an older dump in the folder is no longer whole."""
        with machine_errors("write to", self._folder):
            (self._folder / INDEX).unlink(missing_ok=True)

    def _write_index(self) -> None:
        count = self._together.place.count
        paths = [self._folder / ProcessPlace(index=number, count=count).file_name for number in range(count)]
        with located(str(self._folder)), ExitStack() as opened:
            files = [open_process_file(path, opened) for path in paths]
        merged = self._together.merge(self._outline, [file.manifest for file in files])
        self._remove_others({path.name for path in paths})
        write_index(self._folder / INDEX, ProcessIndex(manifest=merged, files=tuple(file.facts for file in files)))

    def _remove_others(self, ours: set[str]) -> None:
        """Remove the files of an older dump of another number of processes."""
        with machine_errors("write to", self._folder):
            for path in self._folder.iterdir():
                if ProcessPlace.of_file(path.name) is not None and path.name not in ours:
                    path.unlink()


def _require_folder(folder: Path, *, force: bool) -> None:
    shown = printable(str(folder))
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write to {shown}: a dump of several processes is a folder, and that is none")
    if not force and (folder / INDEX).exists():
        raise UsageError(f"{shown} holds a dump", hint="give another path, or replace it with --force")
    if not folder.parent.is_dir():
        raise UsageError(f"cannot write to {shown}: there is no folder {printable(str(folder.parent))}")
    with machine_errors("write to", folder):
        folder.mkdir(exist_ok=True)
