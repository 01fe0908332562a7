"""`Which` selects the tensors of a run that a report is of, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming import Selection

#: Why a run has no tensor of a family that depends on an option of `train`.
_WHY_NONE: Final = {
    naming.CLIPPED_GRAD: "without --clip and --multiply the optimizer gets param_grad as it is; ",
    naming.AVERAGE: "moving averages are of --ema; ",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """`Which` selects tensors of a run, and their order.

    Attributes:
        selection: By name or key.
        families: By family, `slot` for all of an optimizer's variables; None for all.
        sort: Column by which a report sorts their rows, `-COLUMN` for the largest first; None for the step's order.
    """

    selection: Selection
    families: frozenset[str] | None = None
    sort: str | None = None

    def selects(self, tensor: TensorRow) -> bool:
        """Returns whether a tensor is selected."""
        chosen = self.families is None or bool(_families_of(tensor) & self.families)
        return chosen and self.selection.selects(tensor.name, tensor.key)

    def require_matches(self, tensors: Iterable[TensorRow]) -> None:
        """Refuses a pattern, or families, that select none of these tensors.

        Raises:
            UsageError: There is one, or no tensor is of the families.
        """
        tensors = list(tensors)
        known = dict.fromkeys(tensor.family.partition("/")[0] for tensor in tensors)
        if self.families is not None and not any(_families_of(each) & self.families for each in tensors):
            why = next((_WHY_NONE[family] for family in sorted(self.families) if family in _WHY_NONE), "")
            raise UsageError(
                f"the run has no tensor of {', '.join(sorted(self.families))}",
                hint=f"{why}it has {', '.join(known) or 'recorded no step yet'}",
            )
        if self.selection.select:
            self.selection.require_matches([name for each in tensors for name in (each.name, each.key)])


def _families_of(tensor: TensorRow) -> set[str]:
    return {tensor.family, tensor.family.partition("/")[0]}


def chosen_tensors(history: History, which: Which | None) -> dict[int, TensorRow]:
    """Returns the selected tensors by number, in the order of the step.

    Raises:
        UsageError: A pattern, or the families, select nothing.
    """
    if which is None:
        return history.tensors
    which.require_matches(history.tensors.values())
    return {number: tensor for number, tensor in history.tensors.items() if which.selects(tensor)}
