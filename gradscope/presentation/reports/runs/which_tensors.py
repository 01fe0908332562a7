"""Which tensors of a run a report is of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """`Which` selects tensors of a run.

    Attributes:
        selection: By name or key.
        families: By family, `slot` for all of an optimizer's variables; None for all.
    """

    selection: Selection
    families: frozenset[str] | None = None

    def selects(self, tensor: TensorRow) -> bool:
        """Returns whether a tensor is selected."""
        families = {tensor.family, tensor.family.partition("/")[0]}
        chosen = self.families is None or bool(families & self.families)
        return chosen and self.selection.selects(tensor.name, tensor.key)

    def require_matches(self, tensors: Iterable[TensorRow]) -> None:
        """Refuses a pattern that selects none of these tensors.

        Raises:
            UsageError: There is one.
        """
        if self.selection.select:
            self.selection.require_matches([name for each in tensors for name in (each.name, each.key)])


def chosen_tensors(history: History, which: Which | None) -> dict[int, TensorRow]:
    """Returns the selected tensors by number, in the order of the step.

    Raises:
        UsageError: A pattern selects nothing.
    """
    if which is None:
        return history.tensors
    which.require_matches(history.tensors.values())
    return {number: tensor for number, tensor in history.tensors.items() if which.selects(tensor)}
