"""Computes the statistics of tensors that have none: those of foreign files and of recovered dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.entries.packed_statistics import Packer
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import Json
from gradscope.naming import key_of
from gradscope.stats.chunks import stats_of_chunks

#: The tensors whose statistics are packed at once: unpacked, those of a tensor take two kilobytes.
_PACKED: Final = 1024


def measured(source: DumpSource) -> Manifest:
    """Returns a dump's manifest with statistics for every tensor; tensors without any are read.

    Memory is bounded by a chunk, and by what the statistics take packed, 600 bytes for a tensor.

    Args:
        source: The dump.

    Raises:
        DumpError: A tensor that had to be read is damaged.
        MachineError: The disk fails.
    """
    manifest = source.manifest
    packer, entries = Packer(), [*manifest.entries]
    missing = [number for number, entry in enumerate(entries) if not entry.stats and entry.stored is not None]
    for start in range(0, len(missing), _PACKED):
        numbers = missing[start : start + _PACKED]
        packed = packer.pack([_stats(source, entries[number]) for number in numbers])
        for number, stats in zip(numbers, packed, strict=True):
            entries[number] = replace(entries[number], stats=stats)
    return replace(manifest, entries=tuple(entries))


def _stats(source: DumpSource, entry: Entry) -> Mapping[str, Json]:
    chunks = source.chunks(key_of(entry.family, entry.name), reused=True)
    return stats_of_chunks(chunks, shape=entry.shape, dtype=entry.dtype).to_json()
