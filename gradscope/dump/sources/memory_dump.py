"""A dump in memory has the manifest and the tensors of a capture, with the interface of a dump file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradscope.arrays.blocks import Array
from gradscope.dump.interfaces import DumpSource, RecordSink
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.record import Record, TensorFacts, fields_of
from gradscope.dump.sources.whole_arrays import WholeArrays
from gradscope.errors import UsageError
from gradscope.naming import key_of, printable
from gradscope.protocols import implements


class MemoryDump(WholeArrays):
    """A `MemoryDump` is a `DumpSource` whose tensors are in memory.

    Args:
        manifest: The manifest; the file locations in its entries are ignored.
        arrays: The tensors by key, in their logical dtypes.
    """

    def __init__(self, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        self._arrays = dict(arrays)
        super().__init__(manifest, self._arrays)

    @implements(DumpSource)
    def array(self, key: str) -> Array:
        return self._arrays[self._tensor_key(key)]

    def records(self) -> Iterator[Record]:
        """Yields the dump's records, so that a writer can write them to a file."""
        for entry in self._manifest.entries:
            array = self._arrays.get(key_of(entry.family, entry.name))
            yield Record(**fields_of(TensorFacts, entry), array=array)


class MemoryWriter:
    """A `MemoryWriter` is a `RecordSink` that keeps its records in memory."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._keys: set[str] = set()
        self._arrays: dict[str, Array] = {}

    @implements(RecordSink)
    def require_space(self, size_bytes: int) -> None:
        """Does nothing: memory is not checked in advance."""

    @implements(RecordSink)
    def add(self, record: Record) -> Entry:
        key = key_of(record.family, record.name)
        if key in self._keys:
            raise UsageError(f"{printable(key)} is already in the dump", hint="two values have one name: rename one")
        self._keys.add(key)
        entry = Entry.of(record)
        self._entries.append(entry)
        if record.array is not None:
            self._arrays[key] = record.array
        return entry

    @implements(RecordSink)
    def commit(self, facts: RunFacts) -> Manifest:
        return Manifest.of(self._entries, facts)

    @implements(RecordSink)
    def commit_incomplete(self, error: str, facts: RunFacts) -> None:
        """Saves nothing: the caller has the error itself."""

    def dump(self, manifest: Manifest) -> MemoryDump:
        """Returns the added records as a dump."""
        return MemoryDump(manifest, self._arrays)
