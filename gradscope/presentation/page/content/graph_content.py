"""The graph as content states what each tensor is computed from, and source lines with those around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.manifest.provenance import SOURCE_LINES
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, shortened
from gradscope.presentation.tables.dump_rows import Row

#: The most sources of one tensor.
_MOST_SOURCES: Final = 60
#: The most lines around a source line.
_MOST_LINES: Final = 20


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


def sources_content(manifest: Manifest) -> Json:
    """Returns the lines around each source line that a dump has: by source, the number of the first, and the lines.

    Args:
        manifest: The manifest of the dump; what it has that is of another form is left out.
    """
    found = manifest.provenance.get(SOURCE_LINES)
    texts: dict[str, Json] = {}
    for label, text in found.items() if isinstance(found, dict) else ():
        if isinstance(text, list) and len(text) == 2 and isinstance(text[0], int) and isinstance(text[1], list):
            texts[shortened(label)] = [text[0], [shortened(str(line)) for line in text[1][:_MOST_LINES]]]
    return texts
