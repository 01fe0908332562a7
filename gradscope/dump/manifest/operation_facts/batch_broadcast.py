"""Defines a broadcast in a loss that pairs every example with every other."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope import naming


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBroadcast:
    """A `BatchBroadcast` is an operation of a loss on a column and a row of one length, of which one is data.

    Attributes:
        input: The name of the array of the batch.
        size: The length n: shapes [n, 1] and [n] become [n, n].
        column: Whether the array of the batch is the column; else it is the row.
        primitive: The primitive of the operation.
        source: `file:line` in the user's code; None where unknown.
    """

    input: str
    size: int
    column: bool
    primitive: str
    source: str | None = None

    @property
    def sentence(self) -> str:
        """What is wrong, with the array's key and the line."""
        place = "" if self.source is None else f" ({self.source})"
        return naming.printable(f"{naming.key_of(naming.INPUT, self.input)} {self.why}{place}")

    @property
    def why(self) -> str:
        """What is wrong with the array, as the predicate of a sentence."""
        row, column = f"[{self.size}]", f"[{self.size}, 1]"
        own, other = (column, row) if self.column else (row, column)
        return (
            f"has shape {own} and meets a value of the model of shape {other}: {self.primitive} broadcasts them to "
            f"[{self.size}, {self.size}], so the loss pairs every example with every other"
        )
