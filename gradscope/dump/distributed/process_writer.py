"""Writes a dump of several processes: each process writes its shards into a file of its own, process 0 also the index.

A process waits for the others only after its own file is on the disk. So a process that dies loses only its own file.

A dump that is replaced stays whole until the new one is: that is written into a folder `<name>.incomplete` next to it,
and the two folders change their names when it has its index.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from gradscope.dump.distributed.folder_swap import swap_folders
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
    """A `ProcessGroup` is the processes that write one dump, as one of them sees it.

    Attributes:
        process: The index of this process, and the number of processes.
        barrier: Blocks until every process has called it.
        merge: Makes the manifest of the complete dump. See `Merge`.
    """

    process: Process
    barrier: Callable[[], None]
    merge: Merge


class ProcessWriter:
    """A `ProcessWriter` is the `RecordSink` of one process.

    A record with a `shard` is written into this process's file. A record without one describes an entry of the complete
    dump: an alias, an absent tensor, or a global array whose shards the processes write. Every process adds the same
    records without a shard, in the same order. All processes write to the same folder.

    Args:
        folder: The dump's folder; created if it does not exist. Files in it that are of no dump stay there.
        group: The processes that write the dump.
        force: Whether an existing dump may be replaced.

    Raises:
        UsageError: The folder holds a dump, or the path is not a folder.
        MachineError: The folder cannot be created or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], group: ProcessGroup, *, force: bool = False) -> None:
        self._target = Path(os.path.realpath(folder))
        self._group = group
        self._entries: list[Entry] = []
        self._folder = _folder_to_write(self._target, Path(folder), force=force)
        self._file = DumpWriter(self._folder / group.process.file_name, force=force)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The folder stays, also an empty one: other processes may be about to write into it.
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
        written = (self._folder / self._group.process.file_name).stat()
        self._group.barrier()
        try:
            if first:
                self._write_index()
                if self._folder != self._target:
                    self._replace()
        finally:
            self._group.barrier()
        # Where process 0 failed to replace a dump, the one at the target is still the old one.
        with open_dump(self._target if self._has_moved(written) else self._folder) as dump:
            return dump.manifest

    @implements(RecordSink)
    def commit_incomplete(self, error: str, facts: RunFacts) -> Path:
        return self._file.commit_incomplete(error, facts)

    def _withdraw_index(self) -> None:
        """Removes the index of a dump that was written into the folder and did not replace the one at the target."""
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

    def _has_moved(self, written: os.stat_result) -> bool:
        """Returns whether the file of this process that was written is at the target."""
        with suppress(FileNotFoundError):
            return os.path.samestat(written, (self._target / self._group.process.file_name).stat())
        return False

    def _replace(self) -> None:
        """Puts the new dump in the place of the old one, which is removed."""
        swap_folders(self._folder, self._target)
        with machine_errors("remove", self._folder):
            for path in self._folder.iterdir():
                if path.name == INDEX or Process.of_file(path.name) is not None:
                    path.unlink()
                else:
                    path.rename(self._target / path.name)
            self._folder.rmdir()


def _folder_to_write(target: Path, named: Path, *, force: bool) -> Path:
    """Returns the folder that the files are written into, which exists then: the target, or one next to a dump there.

    Args:
        target: The dump's folder, without links.
        named: The same as the user named it.
        force: Whether a dump there may be replaced.
    """
    shown = printable(str(named))
    if target.exists() and not target.is_dir():
        raise UsageError(f"cannot write to {shown}: a dump of several processes is a folder, and that is not one")
    replaced = (target / INDEX).exists()
    if replaced and not force:
        raise UsageError(
            f"{shown} holds a dump", hint="give another path, or replace it with --force (in Python, force=True)"
        )
    if not target.parent.is_dir():
        raise UsageError(f"cannot write to {shown}: there is no folder {printable(str(named.parent))}")
    folder = target.with_name(f"{target.name}.incomplete") if replaced else target
    with machine_errors("write to", folder):
        folder.mkdir(mode=stat.S_IMODE(target.stat().st_mode) if replaced else 0o777, exist_ok=True)
    return folder
