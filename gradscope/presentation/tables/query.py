"""Queries select which rows of a dump are shown, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gradscope import naming
from gradscope.naming import Selection
from gradscope.presentation.tables.dump_rows import Row, value_family
from gradscope.presentation.tables.sorting import sorted_rows
from gradscope.typed_arguments import require_typed_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A `Query` selects the rows of a dump that are shown, and their order.

    Attributes:
        select: Patterns of names or keys; all where empty. A string is one pattern.
        exclude: Patterns of names or keys that are left out.
        families: Which families; None for all.
        depth: The largest number of path components of a layer; None for all. Parameters and inputs are not layers.
        sort: Column to sort by, `-COLUMN` for the largest first; None for execution order. Rows without it come last.

    Raises:
        UsageError: A pattern is not one, or there is no family of one of the names.

    Example:
        >>> import gradscope as gs
        >>> gs.Query(select="encoder/*", families=["param_grad"], sort="-l2").sort
        '-l2'
    """

    select: str | Sequence[str] = ()
    exclude: str | Sequence[str] = ()
    families: str | Collection[str] | None = None
    depth: int | None = None
    sort: str | None = None

    def __post_init__(self) -> None:
        require_typed_fields(self)
        _ = self._selection, self._families

    @property
    def _selection(self) -> Selection:
        return Selection.parse(self.select, self.exclude)

    @property
    def _families(self) -> frozenset[str] | None:
        return None if self.families is None else naming.family_set(self.families)

    def __call__(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Returns the rows that are selected.

        Raises:
            UsageError: A pattern selects nothing, or no row has the column to sort by; the hint names the nearest.
        """
        selection, families = self._selection, self._families
        if selection.select:
            selection.require_matches([*(row.name for row in rows), *(row.key for row in rows)])
        if not selection.select and not selection.exclude and families is None and self.depth is None:
            return sorted_rows([*rows], self.sort)
        chosen = (row for row in rows if families is None or row.family in families)
        return sorted_rows(
            [row for row in chosen if self._shallow(row) and selection.selects(row.name, row.key)], self.sort
        )

    def _shallow(self, row: Row) -> bool:
        if self.depth is None or value_family(row.family) != naming.ACTIVATION:
            return True
        return row.name.count("/") < self.depth
