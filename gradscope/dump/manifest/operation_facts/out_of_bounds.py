"""Defines a look-up of rows that a table does not have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfBounds:
    """An `OutOfBounds` is a look-up of rows of parameters by indices that JAX clips to the last row.

    Attributes:
        input: The name of the array of the batch that has the indices; empty where the program makes them (positions).
        table: The name of the parameter; None where several make the table.
        rows: The rows of the table.
        index: The index that is farthest beyond them; a negative one is so many rows before the first.
        beyond: How many indices are beyond.
        indices: How many indices there are.
        source: `file:line` in the user's code; None where unknown.
    """

    input: str
    table: str | None = None
    rows: int
    index: int
    beyond: int
    indices: int
    source: str | None = None
