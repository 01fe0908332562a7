"""First divergence: where two runs part, in the direction of computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.compare.rows import Row
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, TENSOR

#: A foreign file knows no direction; its tensors count as computed in the file's order.
FORWARD: Final = (ACTIVATION, TENSOR)
BACKWARD: Final = (ACTIVATION_GRAD,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first row over tolerance in each direction; None where that direction agrees or was not compared."""

    forward: Row | None = None
    backward: Row | None = None

    @property
    def backward_only(self) -> bool:
        """Whether the forward pass is clean and the backward pass is not."""
        return self.forward is None and self.backward is not None


def first_divergence(rows: Sequence[Row]) -> Divergence:
    """Where two runs part.

    Args:
        rows: All rows in the reference's order, which decides between rows of one execution index.

    Returns:
        The first divergence, forward in execution order and backward in reverse.
    """
    forward = [row for row in rows if row.family in FORWARD and row.status == "different"]
    backward = [row for row in rows if row.family in BACKWARD and row.status == "different"]
    return Divergence(
        forward=min(forward, key=lambda row: row.index, default=None),
        backward=max(backward, key=lambda row: row.index, default=None),
    )
