"""Writes a dump of several processes: each process writes its shards into a file of its own, process 0 also the index.

A process waits for the others only after its own file is on the disk. So a process that dies loses only its own file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from gradscope.dump.distributed.index import DumpIndex, write_index
from gradscope.dump.distributed.process_reader import open_process_file
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import INDEX, Process, Record
from gradscope.dump.storage.storage_errors import located, machine_errors
from gradscope.dump.writer import DumpWriter
from gradscope.errors import UsageError
from gradscope.naming import key_of, printable
from gradscope.protocols import implements

#: Makes the manifest of the complete dump, from its entries without statistics and every process's manifest.
Merge: TypeAlias = Callable[[Sequence[Entry], Sequence[Manifest]], Manifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The group of processes that write one dump, as one of them sees it.

    Attributes:
        process: The index of this process, and the number of processes.
        barrier: Blocks until every process has called it.
        merge: Makes the manifest of the complete dump. See `Merge`.
    """

    process: Process
    barrier: Callable[[], None]
    merge: Merge


class ProcessWriter:
    """The `RecordSink` of one process.

    A record with a `shard` is written into this process's file. A record without one describes an entry of the complete
    dump: an alias, an absent tensor, or a global array whose shards the processes write. Every process adds the same
    records without a shard, in the same order. All processes write to the same folder.

    Args:
        folder: The dump's folder; created if it does not exist.
        group: The processes that write the dump.
        force: Whether an existing dump may be replaced.

    Raises:
        UsageError: The folder holds a dump, or the path is not a folder.
        MachineError: The folder cannot be created or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], group: ProcessGroup, *, force: bool = False) -> None:
        self._folder = Path(folder)
        self._group = group
        self._entries: list[Entry] = []
        _require_folder(self._folder, force=force)
        self._file = DumpWriter(self._folder / group.process.file_name, force=force)

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
        """Writes a shard to this process's file, or add a whole tensor to the outline.

        Raises:
            UsageError: The record has a tensor and no shard, or cannot be stored.
            MachineError: The disk is full or fails.
        """
        if record.shard is not None:
            return self._file.add(record)
        if record.array is not None:
            raise UsageError(f"{printable(key_of(record.family, record.name))} has a tensor and is not a shard")
        self._entries.append(Entry.of(record))
        return self._entries[-1]

    @implements(RecordSink)
    def commit(self, facts: RunFacts) -> Manifest:
        """Completes the dump of all processes, and returns in each of them when the dump is complete.

        Args:
            facts: The facts of the run, as far as this process knows them.

        Returns:
            The manifest of the complete dump.

        Raises:
            DumpError: The files of the processes do not make up a complete dump.
            MachineError: The disk is full or fails.
        """
        first = self._group.process.index == 0
        if first:
            self._withdraw_index()
        self._file.commit(facts)
        self._group.barrier()
        try:
            if first:
                self._write_index()
        finally:
            self._group.barrier()
        with open_dump(self._folder) as dump:
            return dump.manifest

    @implements(RecordSink)
    def commit_incomplete(self, error: str, facts: RunFacts) -> Path:
        return self._file.commit_incomplete(error, facts)

    def discard(self) -> None:
        """Removes this process's uncommitted file. It may be called at any time, from any thread, repeatedly."""
        self._file.discard()

    def _withdraw_index(self) -> None:
        """Removes the index of an older dump in the folder, which is incomplete from then on."""
        with machine_errors("write to", self._folder):
            (self._folder / INDEX).unlink(missing_ok=True)

    def _write_index(self) -> None:
        count = self._group.process.count
        paths = [self._folder / Process(index=number, count=count).file_name for number in range(count)]
        with located(str(self._folder)), ExitStack() as opened:
            files = [open_process_file(path, opened) for path in paths]
        merged = self._group.merge(self._entries, [file.manifest for file in files])
        self._remove_others({path.name for path in paths})
        write_index(self._folder / INDEX, DumpIndex(manifest=merged, files=tuple(file.facts for file in files)))

    def _remove_others(self, ours: set[str]) -> None:
        """Removes the files of an older dump that another number of processes wrote."""
        with machine_errors("write to", self._folder):
            for path in self._folder.iterdir():
                if Process.of_file(path.name) is not None and path.name not in ours:
                    path.unlink()


def _require_folder(folder: Path, *, force: bool) -> None:
    shown = printable(str(folder))
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write to {shown}: a dump of several processes is a folder, and that is not one")
    if not force and (folder / INDEX).exists():
        raise UsageError(f"{shown} holds a dump", hint="give another path, or replace it with --force")
    if not folder.parent.is_dir():
        raise UsageError(f"cannot write to {shown}: there is no folder {printable(str(folder.parent))}")
    with machine_errors("write to", folder):
        folder.mkdir(exist_ok=True)
