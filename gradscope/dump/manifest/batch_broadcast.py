"""Defines a broadcast in a loss that pairs every example with every other."""

from __future__ import annotations

from dataclasses import dataclass


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
