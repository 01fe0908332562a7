"""A dump file is opened after its structure has been checked. Each tensor is read from the file when it is accessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from gradscope.arrays.blocks import Array
from gradscope.dump.interfaces import DumpSource, EntryIndex
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import CHUNK_BYTES
from gradscope.errors import DumpError
from gradscope.protocols import implements


class TensorReader(Protocol):
    """Reads one tensor, from one file or several."""

    def array(self) -> Array:
        """Returns the full tensor in its logical dtype."""
        ...

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """Yields the elements in C order, in one-dimensional arrays of the logical dtype."""
        ...

    def stretch(self, start: int, stop: int) -> Array:
        """Returns the elements `start:stop` of the flattened tensor, in C order."""
        ...

    def check(self) -> None:
        """Reads all bytes and checks their CRC; returns nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """`Contents` are those of an opened file or folder.

    Attributes:
        manifest: The manifest.
        tensors: A reader for each tensor by key.
        entries: The manifest's entries by key; None where these have not been gathered yet.
    """

    manifest: Manifest
    tensors: Mapping[str, TensorReader]
    entries: Mapping[str, Entry] | None = None


class DumpFile(EntryIndex):
    """A `DumpFile` is a `DumpSource` that reads a file or a folder. It has to be closed, or used as a context manager.

    Any number of threads may read at the same time.

    Args:
        path: The file or folder.
        contents: Its contents.
        opened: The open files from which tensors are read; they are closed with the dump.
    """

    def __init__(self, path: Path, contents: Contents, opened: ExitStack) -> None:
        self.path = path
        self._tensors = contents.tensors
        self._opened = opened
        super().__init__(contents.manifest, contents.tensors, contents.entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @implements(DumpSource)
    def array(self, key: str) -> Array:
        try:
            return self._tensor(key).array()
        except DumpError:
            with located(self._location(key)):
                raise

    @implements(DumpSource)
    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        with located(self._location(key)):
            yield from self._tensor(key).chunks(chunk_bytes, reused=reused)

    @implements(DumpSource)
    def stretch(self, key: str, start: int, stop: int) -> Array:
        with located(self._location(key)):
            return self._tensor(key).stretch(start, stop)

    def check(self, key: str) -> None:
        """Reads all bytes of a tensor and checks their CRC; returns nothing.

        Raises:
            UsageError: There is no such entry, or no tensor for it.
            DumpError: The bytes are damaged.
            MachineError: The disk fails.
        """
        with located(self._location(key)):
            self._tensor(key).check()

    def close(self) -> None:
        """Closes the files. Arrays that have been read stay valid."""
        self._opened.close()

    def _tensor(self, key: str) -> TensorReader:
        return self._tensors[self._tensor_key(key)]

    def _location(self, key: str) -> str:
        return f"{self.path}: {key}"
