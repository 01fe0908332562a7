"""Merges the manifests of several processes: the statistics of shards become those of global tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from gradscope.dump.manifest.manifest import Entry, Layer, Ledger, Manifest
from gradscope.dump.record import Json
from gradscope.errors import DumpError
from gradscope.naming import key_of
from gradscope.stats.power import Power, combined_power
from gradscope.stats.tensor_stats import TensorStats


def merged_manifest(entries: Sequence[Entry], manifests: Sequence[Manifest]) -> Manifest:
    """Returns the manifest of a complete run.

    Args:
        entries: The entries of the complete run, without the statistics of tensors that have shards.
        manifests: The manifest of every process, whose entries are shards. The first one's facts of the run are used.

    Returns:
        The manifest. Its statistics are those of the global tensors; one in several shards lacks the columns that a
        sum loses (`ColumnSpec.in_sum`). Layers have the root mean squares of all processes' elements together.

    Raises:
        DumpError: The processes ran different models, or a shard's statistics are invalid.
    """
    shards: dict[str, list[Mapping[str, Json]]] = {}
    for entry in (entry for manifest in manifests for entry in manifest.entries):
        if entry.shard is not None:
            shards.setdefault(key_of(entry.family, entry.shard.of), []).append(entry.stats)
    merged = tuple(_merged_entry(entry, shards.get(key_of(entry.family, entry.name))) for entry in entries)
    captured = sum(entry.absent is None and entry.alias_of is None for entry in merged)
    first = manifests[0]
    paths = [[layer.path for layer in manifest.layers] for manifest in manifests]
    if any(each != paths[0] for each in paths):
        raise DumpError("the processes did not run the same layers", hint="run the same program in all of them")
    return replace(
        first,
        entries=merged,
        layers=tuple(_merged_layer(calls) for calls in zip(*(manifest.layers for manifest in manifests), strict=True)),
        ledger=Ledger(captured=captured, missing=first.ledger.missing),
        complete=all(manifest.complete for manifest in manifests),
    )


def _merged_entry(entry: Entry, shards: Sequence[Mapping[str, Json]] | None) -> Entry:
    if not shards:
        return entry
    merged = reduce(add, map(TensorStats.from_json, shards))
    return replace(entry, stats=replace(merged, shape=entry.shape).to_json())


def _merged_layer(calls: Sequence[Layer]) -> Layer:
    names = dict.fromkeys(name for call in calls for name in call.rms)
    elements = {name: sum(call.elements.get(name, 0) for call in calls) for name in names}
    return replace(
        calls[0], rms={name: _merged_rms(name, calls) for name in names if elements[name]}, elements=elements
    )  # fmt: skip


def _merged_rms(name: str, calls: Iterable[Layer]) -> float:
    """Returns the root mean square over the elements of all calls; 0 where there are none."""
    powers = (Power(call.rms[name], call.elements.get(name, 0)) for call in calls if name in call.rms)
    found = combined_power(powers)
    return 0.0 if found is None else found.rms
