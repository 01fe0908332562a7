"""Defines a look-up of what is not there: of a row beyond a table, of one of the values of an example, of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

#: What is looked up: rows of a table of parameters, one of the values of each example, such a one counted from the end,
#: or the row of a class in which only its own element is 1.
LookedUp: TypeAlias = Literal["rows", "values", "last values", "classes"]
LOOKED_UP: Final[tuple[LookedUp, ...]] = get_args(LookedUp)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfBounds:
    """An `OutOfBounds` is a look-up by indices that JAX clips, counts from the end, or makes zeros of.

    Attributes:
        looked_up: `rows` of a table of parameters; `values` of which one is picked for each example, as by a label;
            `last values` that a label below 0 picks; or `classes`, of which each makes a row of zeros with a 1 at its
            place (`one_hot`).
        input: The name of the array of the batch that has the indices; empty where the program makes them (positions).
        table: The name of the parameter; None where several make the table, or none.
        rows: How many there are to look up.
        index: The index that is farthest beyond them; a negative one is so many before the first, and of `last values`
            it is the label.
        beyond: How many indices are beyond.
        indices: How many indices there are.
        source: `file:line` in the user's code; None where unknown.
    """

    looked_up: LookedUp = "rows"
    input: str
    table: str | None = None
    rows: int
    index: int
    beyond: int
    indices: int
    source: str | None = None
