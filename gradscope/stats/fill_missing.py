"""Computes the statistics of tensors that have none: those of foreign files and of recovered dumps."""

from __future__ import annotations

from dataclasses import replace

from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.naming import key_of
from gradscope.stats.chunks import stats_of_chunks


def measured(source: DumpSource) -> Manifest:
    """Returns a dump's manifest with statistics for every tensor; tensors without any are read.

    Memory is bounded by a chunk.

    Args:
        source: The dump.

    Raises:
        DumpError: A tensor that had to be read is damaged.
        MachineError: The disk fails.
    """
    manifest = source.manifest
    return replace(manifest, entries=tuple(_measured(source, entry) for entry in manifest.entries))


def _measured(source: DumpSource, entry: Entry) -> Entry:
    if entry.stats or entry.stored is None:
        return entry
    chunks = source.chunks(key_of(entry.family, entry.name), reused=True)
    return replace(entry, stats=stats_of_chunks(chunks, shape=entry.shape, dtype=entry.dtype).to_json())
