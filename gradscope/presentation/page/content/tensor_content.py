"""Tensors as content have all their statistics, by column, and a histogram of magnitudes by octave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened
from gradscope.presentation.tables.dump_rows import Row
from gradscope.stats import TensorStats
from gradscope.stats.columns import base_of, column_kinds

_KINDS: Final = column_kinds()


def tensors_content(rows: Sequence[Row], manifest: Manifest, keys: Keys, *, octaves: bool) -> Json:
    """Returns the statistics of tensors as content.

    Args:
        rows: The rows of the tensors.
        manifest: The manifest that they are of.
        keys: Numbers the tensors.
        octaves: Whether they have their histograms.

    Returns:
        `keys`: the number of each tensor; `columns`: each with its `name`, `kind` and `cells`; `octaves`: for each
            tensor the exponent of the first octave and the counts from there, or None.
    """
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns: list[Json] = [
        {
            "name": name,
            "kind": _KINDS.get(base_of(name), "text"),
            "cells": [_value(row.values.get(name)) for row in rows],
        }
        for name in names
    ]
    return {
        "keys": [keys.number(row.key) for row in rows],
        "columns": columns,
        "octaves": _octaves(rows, manifest) if octaves else [],
    }


def _value(value: Json) -> Json:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return rounded(value)
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else shortened(str(value))


def _octaves(rows: Sequence[Row], manifest: Manifest) -> list[Json]:
    entries = {naming.key_of(entry.family, entry.name): entry for entry in manifest.entries}
    found: list[Json] = []
    for row in rows:
        entry = entries.get(row.own_key)
        stats = TensorStats.from_json(entry.stats) if entry is not None and "histogram" in entry.stats else None
        pairs = list(stats.histogram.octaves()) if stats is not None and stats.histogram is not None else []
        found.append([pairs[0][0], *(number for _, number in pairs)] if pairs else None)
    return found
