"""Declares the two interfaces of a dump, whether it is in a file or in memory.

A `DumpSource` returns the manifest and the tensors of a dump. A `RecordSink` writes the records of a run.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from gradscope.arrays.blocks import Array
from gradscope.dump.manifest.manifest import Entry, Manifest, RunFacts
from gradscope.dump.record import Record
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.errors import ArgumentTypeError, MissingKeyError
from gradscope.naming import key_of, printable
from gradscope.naming.selecting.nearest_names import missing_key
from gradscope.protocols import implements


class DumpSource(Protocol):
    """A `DumpSource` is a dump that can be read.
    Keys are `<family>/<name>`; the key of an alias refers to the tensor that it names.
    """

    @property
    def manifest(self) -> Manifest:
        """The dump's manifest."""
        ...

    def keys(self) -> tuple[str, ...]:
        """Returns the keys of all entries in the order of the manifest, including aliases and absent tensors."""
        ...

    def entry(self, key: str) -> Entry:
        """Returns the entry of a key.

        Raises:
            UsageError: There is none.
        """
        ...

    def resolve(self, key: str) -> str:
        """Returns the key under which the tensor of a key is stored, which differs for an alias.

        Raises:
            UsageError: There is no such entry.
        """
        ...

    def has_tensor(self, key: str) -> bool:
        """Returns whether the dump contains the tensor of a key, and not only its statistics."""
        ...

    def array(self, key: str) -> Array:
        """Returns the tensor of a key in its logical dtype (PRNG keys as their key data).

        Raises:
            UsageError: There is no such entry, or no tensor for it.
            DumpError: Its bytes are damaged.
            MachineError: There is not enough memory, or the disk fails.
        """
        ...

    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """Yields the elements of a tensor in C order, in one-dimensional arrays of its logical dtype.

        Args:
            key: The tensor's key.
            chunk_bytes: Upper bound on the bytes of a chunk; a chunk has at least one element.
            reused: Whether all chunks may share one buffer, which is faster; a chunk is then valid until the next one.

        Raises:
            UsageError: As for `array`.
            DumpError: As for `array`, after the last chunk at the latest.
            MachineError: As for `array`.
        """
        ...

    def stretch(self, key: str, start: int, stop: int) -> Array:
        """Returns the elements `start:stop` of a flattened tensor, in C order; no CRC is checked.

        Args:
            key: The tensor's key.
            start: Index of the first element.
            stop: Index after the last element, at most the tensor's size.

        Raises:
            UsageError: As for `array`.
            DumpError: The file is damaged.
            MachineError: As for `array`.
        """
        ...


class EntryIndex:
    """An `EntryIndex` has the entries of a manifest by key: the methods of `DumpSource` that read no tensors.
    Dumps are derived from it.

    Args:
        manifest: A manifest with unique keys, whose aliases refer to entries that are no aliases.
        tensors: The keys whose tensors the dump has, none of which is an alias.
        entries: The manifest's entries by key; None where these have not been gathered yet.
    """

    # A base class and no part, because a comparison asks for the entry of a tensor twenty times.

    def __init__(self, manifest: Manifest, tensors: Container[str], entries: Mapping[str, Entry] | None = None) -> None:
        self._manifest = manifest
        self._tensor_keys = tensors
        if entries is None:
            entries = {key_of(entry.family, entry.name): entry for entry in manifest.entries}
        self._entries = entries

    @property
    @implements(DumpSource)
    def manifest(self) -> Manifest:
        return self._manifest

    @implements(DumpSource)
    def keys(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @implements(DumpSource)
    def entry(self, key: str) -> Entry:
        found = self._entries.get(key)
        if found is None:
            raise missing_key("the dump has no entry", key, self.keys())
        return found

    @implements(DumpSource)
    def resolve(self, key: str) -> str:
        found = self._entries.get(key)
        return (self.entry(key) if found is None else found).alias_of or key

    @implements(DumpSource)
    def has_tensor(self, key: str) -> bool:
        return key in self._tensor_keys or (key in self._entries and self.resolve(key) in self._tensor_keys)

    def _tensor_key(self, key: str) -> str:
        """Returns the key under which the dump has the tensor of a key.

        Raises:
            UsageError: There is no such entry, or no tensor for it; the message states why.
        """
        if key in self._tensor_keys:
            return key
        own = self.resolve(key)
        if own in self._tensor_keys:
            return own
        reason = self._entries[own].absent or "the dump has its statistics only"
        raise MissingKeyError(f"the dump has no tensor for {printable(key)}: {reason}")


class RecordSink(Protocol):
    """A `RecordSink` writes records one by one, and at the end the manifest."""

    def require_space(self, size_bytes: int) -> None:
        """Raises an error where there is not enough free space.

        Raises:
            MachineError: There is less than `size_bytes`.
        """
        ...

    def add(self, record: Record) -> Entry:
        """Writes a record and returns its entry."""
        ...

    def commit(self, facts: RunFacts) -> Manifest:
        """Completes the dump with the facts of the run, and returns its manifest."""
        ...

    def commit_incomplete(self, error: str, facts: RunFacts) -> Path | None:
        """Saves the records that a failed run has written so far; returns their path, or None where none is saved."""
        ...


def required_source(source: DumpSource) -> DumpSource:
    """Returns an object that a program gave as the source of a dump.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not isinstance(getattr(source, "manifest", None), Manifest):
        hint = "gradscope.load and gradscope.capture return a Dump"
        raise ArgumentTypeError(f"source is of type {type(source).__name__}, expected a DumpSource", hint=hint)
    return source
