"""Values that differ on a mesh lead to the loss, or are only arranged otherwise.

The number of a device is another one on each, and so is what is computed of it, as the rows of a table that a device
has. Where nothing but values that agree is made of such a value, it is not at fault.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_among, sources_of
from gradscope.naming import ACTIVATION, key_of


def leading_to_loss(rows: Iterable[ComparisonRow], source: DumpSource) -> list[ComparisonRow]:
    """Returns the values that differ from which values that differ lead to the loss, in the order of computation.

    Args:
        rows: The rows of a comparison.
        source: The reference, which states what each value is computed from; without that, there are none.
    """
    values = {key_of(row.family, row.name): row for row in rows if row.family == ACTIVATION and row.counts}
    different = {key for key, row in values.items() if row.status == "different"}
    graph = {**sources_of(source.manifest.layers), "": source.manifest.loss_sources}
    found = sources_among(graph, "", different, values.keys() - different)
    return sorted((values[key] for key in found), key=lambda row: row.index)
