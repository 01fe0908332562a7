"""Opens files that another program wrote as dumps without statistics.

A name that has the form of a key, such as `param/head/kernel`, keeps its family. Any other tensor gets the family
`tensor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradscope.arrays.dtypes import is_key
from gradscope.dump.manifest.manifest import Entry, Manifest, Stored
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.dump_file import Contents
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.errors import DumpError
from gradscope.naming import key_of, split_key

NOTE: Final = "not written by gradscope"

#: The most tensors of a foreign file: one takes 128 bytes there, and 2 kB where it is opened.
MOST_TENSORS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTensor:
    """A `ForeignTensor` is a tensor in a foreign file.

    Attributes:
        name: The name in that file.
        crc32: CRC-32 of the zip member; 0 where the file stores none.
        offset: File offset of the (possibly compressed) bytes.
        tensor: The reader of the tensor.
    """

    name: str
    crc32: int
    offset: int
    tensor: StoredTensor


def foreign_contents(found: Iterable[ForeignTensor], *, note: str = NOTE) -> Contents:
    """Returns the tensors of foreign files as the contents of a dump.

    Raises:
        DumpError: There is no tensor, two have the same name, or there are more than `MOST_TENSORS`.
    """
    entries: dict[str, Entry] = {}
    tensors: dict[str, StoredTensor] = {}
    for position, each in enumerate(found):
        if position == MOST_TENSORS:
            raise DumpError(f"it holds more than {MOST_TENSORS:,} tensors")
        entry = _entry(each, position)
        key = key_of(entry.family, entry.name)
        if key in entries:
            raise DumpError(f"it holds two tensors called {each.name!r}", hint="in a folder, name one of its files")
        entries[key], tensors[key] = entry, each.tensor
    if not entries:
        raise DumpError("it holds no tensors")
    return Contents(manifest=Manifest(entries=tuple(entries.values()), note=note), tensors=tensors)


def _entry(found: ForeignTensor, position: int) -> Entry:
    family, name = split_key(found.name)
    tensor = found.tensor
    return Entry(
        family=family,
        name=name,
        shape=tensor.shape[:-1] if is_key(tensor.logical) else tensor.shape,
        dtype=tensor.logical,
        stats={},
        site=SiteFacts(index=position),
        stored=Stored(
            member=found.name,
            dtype=tensor.stored.str,
            crc32=found.crc32,
            offset=found.offset,
            size_bytes=tensor.size_bytes,
        ),
    )
