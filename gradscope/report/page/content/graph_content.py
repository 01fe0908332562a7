"""The graph of a dump as content: from which values and gradients each one is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.report.page.content.json_values import Keys
from gradscope.report.tables.dump_rows import Row

#: The most sources of one tensor.
_MOST_SOURCES: Final = 60


def graph_content(manifest: Manifest, rows: Sequence[Row], keys: Keys) -> Json:
    """Returns the `sources` of each tensor: for its number, the numbers of those that it is computed from.

    Args:
        manifest: The manifest of the dump.
        rows: The rows whose tensors are on the page; no other one is named.
        keys: Numbers the tensors.
    """
    known = {row.key for row in rows}
    found: dict[str, Json] = {}
    for key, sources in sources_of(manifest.layers).items():
        shown = [source for source in dict.fromkeys(sources) if source in known] if key in known else []
        if shown:
            found[str(keys.number(key))] = [keys.number(source) for source in shown[:_MOST_SOURCES]]
    return {"sources": found}
