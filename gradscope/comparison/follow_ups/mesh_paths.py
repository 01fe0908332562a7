"""Values that differ on a mesh lead to the loss, or are only arranged otherwise.

The number of a device is another one on each, and so is what is computed of it, as the rows of a table that a device
has. Where nothing but values that agree is made of such a value, it is not at fault; the number itself is never.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_among, sources_of
from gradscope.dump.manifest.manifest import Layer
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
    numbers = _of_numbers(source.manifest.layers)
    return sorted((values[key] for key in found if key not in numbers), key=lambda row: row.index)


def _of_numbers(layers: Iterable[Layer]) -> set[str]:
    """Returns the values that operations compute of the number of a device alone, which is never at fault."""
    found: set[str] = set()
    for layer in sorted((each for each in layers if each.operation), key=lambda each: each.index):
        read = {*(key_of(ACTIVATION, name) for name in layer.inputs), *layer.sources, *layer.params}
        if layer.primitive == "axis_index" or (read and read <= found):
            found.update(key_of(ACTIVATION, name) for name in layer.outputs)
    return found
