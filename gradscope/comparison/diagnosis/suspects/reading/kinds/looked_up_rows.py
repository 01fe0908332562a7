"""`rows_read` tells which rows of a table an embedding looks up in both programs, where they are others.

Positions may be counted from one, and tokens may be those of another axis. The rows that make the output show it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.naming import PARAM, key_of, printable, split_key

#: The most elements of a table, and of an output, that are looked at, and the most rows.
_MOST_ELEMENTS: Final = 1 << 22
_MOST_ROWS: Final = 1 << 17

#: How many of the rows are told that differ.
_TOLD: Final = 3


def rows_read(dumps: Dumps, pairing: Pairing, match: Match) -> str:
    """Returns which rows of a table a layer looks up in both programs, in words; "" where none, or the same.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        match: The pair of the output of the layer.
    """
    layer = makers_of(dumps.ref.manifest.layers).get(split_key(match.ref)[1])
    params = [] if layer is None else [key_of(PARAM, name) for name in layer.params]
    if len(params) != 1:
        return ""
    table = next((each for each in pairing.matched if each.ref == params[0]), None)
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
    if table is None:
        return ""
    own, its = (
        None if rows is None or value is None else _looked_up(rows, value)
        for rows, value in (
            (ref.tensor(table.ref), ref.tensor(match.ref)),
            (cand.made(table.recipe), cand.made(match.recipe)),
        )
    )
    if own is None or its is None or own.shape != its.shape or not (apart := np.flatnonzero(own != its)).size:
        return ""
    told = [_in_words(rows[apart]) for rows in (own, its)]
    return f"which looks up {told[0]} of `{printable(split_key(table.ref)[1])}`, and in the candidate {told[1]}"


def _in_words(rows: npt.NDArray[np.intp]) -> str:
    if rows.size == 1:
        return f"the row {rows[0]}"
    return f"the rows [{', '.join(map(str, rows[:_TOLD]))}{', ...' if rows.size > _TOLD else ''}]"


def _looked_up(table: Array, value: Array) -> npt.NDArray[np.intp] | None:
    """Returns the number of the row of a table that each vector of a value is; None where one is none of them."""
    if table.ndim != 2 or value.shape[-1:] != table.shape[1:] or max(table.size, value.size) > _MOST_ELEMENTS:
        return None
    vectors = value.reshape(-1, value.shape[-1])
    if len(table) + len(vectors) > _MOST_ROWS:
        return None
    # A row is known by its bytes: it is copied, and not computed. Adding zero makes one of both zeros.
    numbers = {row.tobytes(): at for at, row in reversed([*enumerate(table + 0.0)])}
    found = np.array([numbers.get(vector.tobytes(), -1) for vector in vectors + 0.0])
    return found if (found >= 0).all() else None
