"""A dump in memory: the manifest and the tensors of a capture, with the interface of a dump file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Unpack

from gradscope.arrays.blocks import Array, blocks, stretch_of
from gradscope.dump.interfaces import EntryIndex, ManifestFields
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import Record
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.naming import key_of


class MemoryDump:
    """A `DumpSource` whose tensors are in memory.

    Args:
        manifest: The manifest; the file locations in its entries are ignored.
        arrays: The tensors by key, in their logical dtypes.
    """

    def __init__(self, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        self._manifest = manifest
        self._arrays = dict(arrays)
        self._index = EntryIndex(manifest)

    @property
    def manifest(self) -> Manifest:
        """See `DumpSource`."""
        return self._manifest

    def keys(self) -> tuple[str, ...]:
        """See `DumpSource`."""
        return self._index.keys()

    def entry(self, key: str) -> Entry:
        """See `DumpSource`."""
        return self._index.entry(key)

    def resolve(self, key: str) -> str:
        """See `DumpSource`."""
        return self._index.resolve(key)

    def array(self, key: str) -> Array:
        """See `DumpSource`."""
        return self._arrays[self._index.tensor_key(key, self._arrays)]

    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:  # noqa: ARG002
        """See `DumpSource`."""
        array = self.array(key)
        return blocks(array, max(1, chunk_bytes // array.itemsize))

    def stretch(self, key: str, start: int, stop: int) -> Array:
        """See `DumpSource`."""
        return stretch_of(self.array(key), start, stop)

    def records(self) -> Iterator[Record]:
        """Yields the dump's records, so that a writer can write them to a file."""
        for entry in self._manifest.entries:
            yield Record(
                family=entry.family,
                name=entry.name,
                shape=entry.shape,
                dtype=entry.dtype,
                array=self._arrays.get(key_of(entry.family, entry.name)),
                stats=entry.stats,
                site=entry.site,
                alias_of=entry.alias_of,
                absent=entry.absent,
            )


class MemoryWriter:
    """A `RecordSink` that keeps its records in memory."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._arrays: dict[str, Array] = {}

    def require_space(self, size_bytes: int) -> None:
        """See `RecordSink`; memory is not checked in advance."""

    def add(self, record: Record) -> Entry:
        """See `RecordSink`."""
        entry = Entry.of(record)
        self._entries.append(entry)
        if record.array is not None:
            self._arrays[key_of(record.family, record.name)] = record.array
        return entry

    def commit(self, **fields: Unpack[ManifestFields]) -> Manifest:
        """See `RecordSink`."""
        return Manifest(entries=tuple(self._entries), **fields)

    def commit_incomplete(self, error: str, **fields: Unpack[ManifestFields]) -> None:
        """See `RecordSink`; the caller has the error itself."""

    def dump(self, manifest: Manifest) -> MemoryDump:
        """Returns the added records as a dump."""
        return MemoryDump(manifest, self._arrays)
