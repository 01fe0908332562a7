"""A dump in a file, opened: its structure has been checked, its tensors are read when asked for."""

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
from gradscope.protocols import implements


class TensorReader(Protocol):
    """Reads one tensor, from wherever its elements lie."""

    def array(self) -> Array:
        """The tensor, in its logical dtype."""
        ...

    def chunks(self, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        """Its elements in C order, in one-dimensional arrays of the logical dtype."""
        ...

    def stretch(self, start: int, stop: int) -> Array:
        """Its elements from `start` to before `stop` in C order."""
        ...

    def check(self) -> None:
        """Read everything and keep nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What has been found in a file: its manifest, and by key the tensors that it holds."""

    manifest: Manifest
    tensors: Mapping[str, TensorReader]


class DumpFile:
    """A `DumpSource` in a file or a folder; close it, or use it as a context manager.

    Any number of threads may read at the same time.

    Args:
        path: Where it is.
        contents: What is in it.
        opened: What to close with it: the files its tensors are read from.
    """

    def __init__(self, path: Path, contents: Contents, opened: ExitStack) -> None:
        self.path = path
        self._contents = contents
        self._opened = opened
        self._index = EntryIndex(contents.manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    @implements(DumpSource)
    def manifest(self) -> Manifest:
        return self._contents.manifest

    @implements(DumpSource)
    def keys(self) -> tuple[str, ...]:
        return self._index.keys()

    @implements(DumpSource)
    def entry(self, key: str) -> Entry:
        return self._index.entry(key)

    @implements(DumpSource)
    def resolve(self, key: str) -> str:
        return self._index.resolve(key)

    @implements(DumpSource)
    def has_tensor(self, key: str) -> bool:
        return self._index.has_tensor(key, self._contents.tensors)

    @implements(DumpSource)
    def array(self, key: str) -> Array:
        with located(self._place(key)):
            return self._tensor(key).array()

    @implements(DumpSource)
    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, *, reused: bool = False) -> Iterator[Array]:
        with located(self._place(key)):
            yield from self._tensor(key).chunks(chunk_bytes, reused=reused)

    @implements(DumpSource)
    def stretch(self, key: str, start: int, stop: int) -> Array:
        with located(self._place(key)):
            return self._tensor(key).stretch(start, stop)

    def check(self, key: str) -> None:
        """Read a tensor and keep nothing of it.

        Raises:
            UsageError: There is no such entry, or no tensor for it.
            DumpError: Its bytes are damaged.
            MachineError: The disk fails.
        """
        with located(self._place(key)):
            self._tensor(key).check()

    def close(self) -> None:
        """Close the files; what has been read stays."""
        self._opened.close()

    def _tensor(self, key: str) -> TensorReader:
        return self._contents.tensors[self._index.tensor_key(key, self._contents.tensors)]

    def _place(self, key: str) -> str:
        return f"{self.path}: {key}"
