"""Tensors as content have all their statistics, by column, and a histogram of magnitudes by octave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.tables.dump_rows import Row, RowColumns
from gradscope.stats.columns import base_of, column_kinds
from gradscope.stats.reduction_columns import histogram_of

_KINDS: Final = column_kinds()


def tensors_content(rows: Sequence[Row], manifest: Manifest, keys: Keys, *, octaves: bool) -> Streamed:
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
    columns = RowColumns(rows)
    return {
        "keys": (keys.number(row.key) for row in rows),
        "columns": (
            {
                "name": name,
                "kind": _KINDS.get(base_of(name), "text"),
                "cells": list(map(_value, columns.values(name))),
            }
            for name in names
        ),
        "octaves": _octaves(rows, manifest) if octaves else [],
    }


def _value(value: Json | tuple[int, ...]) -> Json:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return rounded(value)
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else shortened(str(value))


def _octaves(rows: Sequence[Row], manifest: Manifest) -> Iterator[Json]:
    entries = {naming.key_of(entry.family, entry.name): entry for entry in manifest.entries}
    for row in rows:
        entry = entries.get(row.own_key)
        stated = entry.stats.get("histogram") if entry is not None else None
        pairs = list(histogram_of(stated).octaves()) if stated is not None else []
        yield [pairs[0][0], *(number for _, number in pairs)] if pairs else None
