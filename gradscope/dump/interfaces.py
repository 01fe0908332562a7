"""A dump as its readers see it, wherever its tensors are: in a file, or in memory because it was never written.

Sinks: what takes the records of a run, whether into a file or into memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypedDict, Unpack

from gradscope.arrays.blocks import Array
from gradscope.dump.manifest.manifest import Cause, Entry, Examples, Layer, Ledger, Manifest, Origin
from gradscope.dump.record import Json, Record
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.errors import MissingKeyError, UsageError
from gradscope.naming import key_of, printable
from gradscope.naming.patterns import nearest_hint


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


def has_elements(source: DumpSource, key: str) -> bool:
    """Whether a dump holds the elements of a key's tensor, and not its statistics only."""
    try:
        next(source.chunks(key, chunk_bytes=1), None)
    except UsageError:
        return False
    return True


class EntryIndex:
    """The entries of a manifest by key.

    Args:
        manifest: Whose keys are unique and whose aliases name entries that are none.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._entries = {key_of(entry.family, entry.name): entry for entry in manifest.entries}

    def keys(self) -> tuple[str, ...]:
        """See `DumpSource`."""
        return tuple(self._entries)

    def entry(self, key: str) -> Entry:
        """See `DumpSource`."""
        if key not in self._entries:
            raise MissingKeyError(f"the dump has no entry {printable(key)}", hint=nearest_hint(key, self.keys()))
        return self._entries[key]

    def resolve(self, key: str) -> str:
        """See `DumpSource`."""
        return self.entry(key).alias_of or key

    def tensor_key(self, key: str, tensors: Container[str]) -> str:
        """The key under which `tensors` has the tensor of a key.

        Raises:
            UsageError: There is no such entry, or no tensor for it; why is said.
        """
        own = self.resolve(key)
        if own in tensors:
            return own
        reason = self._entries[own].absent or "the dump has its statistics only"
        raise MissingKeyError(f"the dump has no tensor for {printable(key)}: {reason}")


class ManifestFields(TypedDict, total=False):
    """What a caller says about a dump as a whole: the fields of `Manifest` beside its entries."""

    layers: tuple[Layer, ...]
    ledger: Ledger
    causes: tuple[Cause, ...]
    loss: float | None
    tier: Literal["core", "full"]
    provenance: Mapping[str, Json]
    self_check: Mapping[str, Json] | None
    examples: Examples | None
    timings: Mapping[str, float]
    origins: tuple[Origin, ...]
    complete: bool
    note: str


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

    def commit(self, **fields: Unpack[ManifestFields]) -> Manifest:
        """Make a dump of the records taken."""
        ...

    def commit_incomplete(self, error: str, **fields: Unpack[ManifestFields]) -> Path | None:
        """Save what was taken until a run failed; returns where, None where nothing is saved."""
        ...
