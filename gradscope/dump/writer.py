"""Writes a dump, one record at a time. An old file at the path stays intact until the new one is complete.

    with DumpWriter(path, force=True) as writer:
        for record in records:
            writer.add(record)
        writer.commit(RunFacts(loss=loss))

Leaving the block without `commit` removes everything that was written. Memory is bounded by a chunk, not by a tensor.
The crash-safe part is in `storage/writing/partial_file.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype, dtype_name, is_key, stored_dtype
from gradscope.dump.manifest.codec import manifest_to_text
from gradscope.dump.manifest.manifest import MEMBER, Entry, Manifest, RunFacts, Stored
from gradscope.dump.record import Record
from gradscope.dump.storage.member_facts import member_facts
from gradscope.dump.storage.npy_header import AXES_LIMIT, npy_header
from gradscope.dump.storage.writing.partial_file import PartialFile, sweep
from gradscope.dump.storage.writing.target_path import (
    DUMP,
    checked_target,
    incomplete_target,
    require_no_input,
    require_space,
)
from gradscope.dump.zip.member_names import member_name
from gradscope.dump.zip.zip_writer import Payload, ZipWriter
from gradscope.errors import UsageError
from gradscope.naming import key_of, printable, split_key


class DumpWriter:
    """Writes one dump. It has to be used as a context manager.

    Args:
        path: The file to write, NAME.npz; a symbolic link is followed.
        force: Whether an existing file may be replaced.
        inputs: Files that the run reads, which are not replaced in any case.

    Raises:
        UsageError: The path cannot be used, or a file exists there.
        MachineError: The folder is read-only.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False, inputs: Iterable[Path] = ()) -> None:
        self._inputs = tuple(inputs)
        self._path = Path(path)
        self._target = checked_target(self._path, force=force, inputs=self._inputs, kind=DUMP)
        self._force = force
        self._file = PartialFile(self._target)
        self._zip = ZipWriter(self._file)
        self._entries: dict[str, Entry] = {}

    def __enter__(self) -> Self:
        require_no_input(self._target, self._path, self._inputs)  # the model may have read it meanwhile
        sweep(self._target)
        try:
            self._file.create()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def require_space(self, size_bytes: int) -> None:
        """Raises an error where the disk has less free space than the dump will take.

        Args:
            size_bytes: The predicted size of the dump.

        Raises:
            MachineError: The disk has less free space.
        """
        require_space(self._target, size_bytes)

    def add(self, record: Record) -> Entry:
        """Writes a record.

        Args:
            record: A record whose family and name together are not in the dump yet.

        Returns:
            The record's entry in the manifest.

        Raises:
            UsageError: The record cannot be stored under its name or with its dtype, or its name is already in use.
            MachineError: The disk is full or fails.
        """
        key = key_of(record.family, record.name)
        if key in self._entries:
            raise UsageError(f"{printable(key)} is already in the dump", hint="two values have one name: rename one")
        if split_key(key) != (record.family, record.name) or not record.name:
            raise UsageError(f"{printable(key)!r} is not the key of a tensor: it has no known family, or no name")
        if record.alias_of is not None and not self._is_original(record.alias_of):
            raise UsageError(f"{printable(key)} is an alias of {printable(record.alias_of)}, which is not in the dump")
        stored = None if record.array is None else self._store(key, record, record.array)
        self._entries[key] = Entry.of(record, stored)
        return self._entries[key]

    def commit(self, facts: RunFacts) -> Manifest:
        """Writes the manifest and moves the dump to its path; on return, it is synced to disk.

        Args:
            facts: The facts of the run.

        Returns:
            The manifest.

        Raises:
            UsageError: Another process has written a file to the path meanwhile, and none may be replaced; or the run
                has read the file that is there.
            MachineError: The disk is full or fails; an old file at the path is unchanged.
        """
        manifest = Manifest.of(self._entries.values(), facts)
        require_no_input(self._target, self._path, self._inputs)
        self._publish(manifest, self._target, replace=self._force)
        return manifest

    def commit_incomplete(self, error: str, facts: RunFacts) -> Path:
        """Writes what a failed run had captured into a file next to the path.

        Args:
            error: The error that ended the run; it becomes the manifest's note.
            facts: The facts of the run.

        Returns:
            The path, NAME.incomplete.npz; an existing file there is replaced.

        Raises:
            MachineError: The disk is full or fails.
        """
        manifest = Manifest.of(self._entries.values(), replace(facts, complete=False, note=error))
        target = incomplete_target(self._target, self._inputs)
        self._publish(manifest, target, replace=True)
        return target

    def _is_original(self, key: str) -> bool:
        return key in self._entries and self._entries[key].alias_of is None

    def _store(self, key: str, record: Record, array: Array) -> Stored:
        _require_agreement(key, record, array)
        dtype = stored_dtype(record.dtype)
        header = npy_header(dtype, array.shape)
        member = member_name(key)
        written = self._zip.add(
            member,
            Payload(head=header, array=array),
            len(header) + array.size * dtype.itemsize,
            facts=member_facts(record.dtype),
        )
        return Stored(
            member=member,
            dtype=dtype.str,
            crc32=written.crc32,
            offset=written.offset + len(header),
            size_bytes=array.size * dtype.itemsize,
        )

    def _publish(self, manifest: Manifest, target: Path, *, replace: bool) -> None:
        text = manifest_to_text(manifest).encode("ascii")
        self._zip.add(MEMBER, Payload(head=text, array=np.empty(0, np.uint8)), len(text))
        self._file.publish(target, self._zip.finish(), replace=replace)

    def _leave(self) -> None:
        self._file.discard()
        self._file.close()


def _require_agreement(key: str, record: Record, array: Array) -> None:
    """Raises an error where an array does not have its record's shape and dtype."""
    shape = array.shape[:-1] if is_key(record.dtype) else array.shape
    if array.ndim > AXES_LIMIT:
        raise UsageError(f"{printable(key)} has {array.ndim} axes, more than {AXES_LIMIT}")
    if shape != record.shape:
        raise UsageError(f"{printable(key)} is declared with shape {record.shape}, its array has {array.shape}")
    if dtype_name(array.dtype) != dtype_name(as_numpy_dtype(record.dtype)):
        raise UsageError(f"{printable(key)} is declared with dtype {record.dtype}, its array has {array.dtype}")
