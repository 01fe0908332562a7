"""The cells of an inspection's block have what the layers of one line cost together.

A layer's costs have those of its parts in them, so that only the outermost layers of a line count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gradscope.presentation.tables.by_block.block_cells import BlockFacts
from gradscope.presentation.tables.dump_rows import Row
from gradscope.presentation.tables.table import Cell, Column, column


def _layers(facts: BlockFacts) -> Sequence[Row]:
    """Returns the outermost layers of a line."""
    own = [row for each in facts.own for row in each.values]
    rows = own or [row for instance in facts.instances for each in instance for row in each.values]
    names = {row.name for row in rows}
    return [row for row in rows if not any(around in names for around in _around(row.name))]


def _around(name: str) -> list[str]:
    """Returns the paths around a path; that of a loop is around its iterations."""
    return [name[:at] for at, character in enumerate(name) if character in "/["]


def _sum(each: Column) -> Callable[[BlockFacts], Cell]:
    def total(facts: BlockFacts) -> Cell:
        found = [value for row in _layers(facts) if isinstance(value := row.value(each.heading), int | float)]
        return sum(found) if found else None

    return total


def _common(each: Column) -> Callable[[BlockFacts], Cell]:
    def common(facts: BlockFacts) -> Cell:
        found = {each.cell_of(row.value) for row in _layers(facts)}
        return found.pop() if len(found) == 1 else None

    return common


_SHAPE: Final = column("shape", 3, "shape")
_SOURCE: Final = column("source", 6, "text")
_COSTS: Final = (
    column("flops", 1, "amount"),
    column("flops_share", 2, "share"),
    column("parameters", 1, "amount"),
    column("parameter_share", 7, "share"),
    column("activation_bytes", 3, "amount"),
    column("backward_flops", 4, "amount"),
    column("iterations", 6, "count"),
    column("operations", 5, "count"),
    column("needed", 2, "count"),
)

#: Of several blocks, only what they have in common.
_NO_SUMS: Final = frozenset({"iterations"})

#: What a line shows, by column: sums, and what all blocks of a line have in common.
COST_CELLS: Final[Mapping[Column, Callable[[BlockFacts], Cell]]] = MappingProxyType(
    {_SHAPE: _common(_SHAPE)}
    | {each: _common(each) if each.heading in _NO_SUMS else _sum(each) for each in _COSTS}
    | {_SOURCE: _common(_SOURCE)}
)
