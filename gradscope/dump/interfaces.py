"""A dump as its readers see it, wherever its tensors are: in a file, or in memory because it was never written.

Sinks: what takes the records of a run, whether into a file or into memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Protocol

from gradscope.arrays.blocks import Array
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.record import Record
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.errors import UsageError
from gradscope.naming import key_of, printable
from gradscope.naming.patterns import nearest_hint
from gradscope.protocols import implements


class DumpSource(Protocol):
    """What a dump can be asked. Keys are `<family>/<name>`; a key that is an alias stands for the tensor it names."""

    @property
    def manifest(self) -> Manifest:
        """What the dump says about itself."""
        ...

    def keys(self) -> tuple[str, ...]:
        """The keys of all entries, aliases and those without a tensor included, in the order of the manifest."""
        ...

    def entry(self, key: str) -> Entry:
        """The entry of a key.

        Raises:
            UsageError: There is none.
        """
        ...

    def resolve(self, key: str) -> str:
        """The key under which the tensor of a key is stored: another one for an alias.

        Raises:
            UsageError: There is no such entry.
        """
        ...

    def has_tensor(self, key: str) -> bool:
        """Whether the dump holds the tensor of a key, and not its statistics only; False where there is no such key."""
        ...

    def array(self, key: str) -> Array:
        """The tensor of a key, in its logical dtype (PRNG keys as their key data).

        Raises:
            UsageError: There is no such entry, or no tensor for it.
            DumpError: Its bytes are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        ...

    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """The elements of a tensor in C order, in one-dimensional arrays of its logical dtype.

        Args:
            key: Which tensor.
            chunk_bytes: Upper bound on the bytes of a chunk, but for a single element.
            reused: Whether an array need be valid only until the next is drawn: reading is faster then.

        Raises:
            UsageError: As for `array`.
            DumpError: As for `array`, at the latest behind the last chunk.
            MachineError: As for `array`.
        """
        ...

    def stretch(self, key: str, start: int, stop: int) -> Array:
        """The elements of a tensor from `start` to before `stop` in C order, in one dimension; no CRC is checked.

        Args:
            key: Which tensor.
            start: Index of the first element.
            stop: Index behind the last, at most their number.

        Raises:
            UsageError: As for `array`.
            DumpError: The file is damaged.
            MachineError: As for `array`.
        """
        ...


class EntryIndex:
    """The entries of a manifest by key: the part of a `DumpSource` that needs no tensors.

    Args:
        manifest: Whose keys are unique and whose aliases name entries that are none.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._entries = {key_of(entry.family, entry.name): entry for entry in manifest.entries}

    @implements(DumpSource)
    def keys(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @implements(DumpSource)
    def entry(self, key: str) -> Entry:
        if key not in self._entries:
            raise UsageError(f"the dump has no entry {printable(key)}", hint=nearest_hint(key, self.keys()))
        return self._entries[key]

    @implements(DumpSource)
    def resolve(self, key: str) -> str:
        return self.entry(key).alias_of or key

    def has_tensor(self, key: str, tensors: Container[str]) -> bool:
        """Whether `tensors` has the tensor of a key; False where there is no such key."""
        return key in self._entries and self.resolve(key) in tensors

    def tensor_key(self, key: str, tensors: Container[str]) -> str:
        """The key under which `tensors` has the tensor of a key.

        Raises:
            UsageError: There is no such entry, or no tensor for it; why is said.
        """
        own = self.resolve(key)
        if own in tensors:
            return own
        reason = self._entries[own].absent or "the dump has its statistics only"
        raise UsageError(f"the dump has no tensor for {printable(key)}: {reason}")


class RecordSink(Protocol):
    """Takes records one by one, and at the end what is to be said of them as a whole."""

    def require_space(self, size_bytes: int) -> None:
        """Refuse to go on where there is no room for that much.

        Raises:
            MachineError: There is less.
        """
        ...

    def add(self, record: Record) -> Entry:
        """Take a record."""
        ...

    def commit(self, facts: RunFacts) -> Manifest:
        """Make a dump of the records taken and the facts of their run."""
        ...

    def commit_incomplete(self, error: str, facts: RunFacts) -> Path | None:
        """Save what was taken until a run failed; returns where, None where nothing is saved."""
        ...
