"""The manifest of a run that several processes shared: statistics of shards merged into statistics of wholes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from gradscope.dump.manifest.manifest import Entry, Layer, Ledger, Manifest
from gradscope.dump.record import Json
from gradscope.errors import DumpError
from gradscope.naming import key_of
from gradscope.stats.tensor_stats import TensorStats


def merged_manifest(outline: Sequence[Entry], parts: Sequence[Manifest]) -> Manifest:
    """The manifest of a whole run.

    Args:
        outline: Its entries; those of tensors that have shards without statistics.
        parts: The manifest of every process, their entries shards. The first speaks for what all know.

    Returns:
        The manifest. Statistics are those of the whole tensors, but for what cannot be merged: the hash, dead and
        saturated units of a tensor in several shards. Layers have the root mean squares of the whole.

    Raises:
        DumpError: The processes ran different models, or a shard's statistics are not what they should be.
    """
    shards: dict[str, list[Mapping[str, Json]]] = {}
    for entry in (entry for part in parts for entry in part.entries):
        if entry.shard is not None:
            shards.setdefault(key_of(entry.family, entry.shard.of), []).append(entry.stats)
    entries = tuple(_merged_entry(entry, shards.get(key_of(entry.family, entry.name))) for entry in outline)
    captured = sum(entry.absent is None and entry.alias_of is None for entry in entries)
    first = parts[0]
    if any([layer.path for layer in part.layers] != [layer.path for layer in first.layers] for part in parts):
        raise DumpError("the processes did not run the same layers", hint="run the same program in all of them")
    return replace(
        first,
        entries=entries,
        layers=tuple(_merged_layer(calls) for calls in zip(*(part.layers for part in parts), strict=True)),
        ledger=Ledger(captured=captured, missing=first.ledger.missing),
        complete=all(part.complete for part in parts),
    )


def _merged_entry(entry: Entry, shards: Sequence[Mapping[str, Json]] | None) -> Entry:
    if not shards:
        return entry
    whole = reduce(add, map(TensorStats.from_json, shards))
    return replace(entry, stats=replace(whole, shape=entry.shape).to_json())


def _merged_layer(calls: Sequence[Layer]) -> Layer:
    names = dict.fromkeys(name for call in calls for name in call.rms)
    elements = {name: sum(call.elements.get(name, 0) for call in calls) for name in names}
    return replace(
        calls[0], rms={name: _together(name, calls) for name in names if elements[name]}, elements=elements
    )  # fmt: skip


def _together(name: str, calls: Iterable[Layer]) -> float:
    """The root mean square over the elements of all calls."""
    found = [(call.rms[name], call.elements[name]) for call in calls if name in call.rms]
    return math.sqrt(sum(rms**2 * elements for rms, elements in found) / sum(elements for _, elements in found))
