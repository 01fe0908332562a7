"""Places: the order in which the tables of families stand."""

from __future__ import annotations

from typing import Final

from gradscope import naming

#: A gradient's place is its value's.
_PLACES: Final = {family: place for place, family in enumerate(naming.FAMILIES)}


def place(family: str) -> int:
    """Where a family stands among others: in the order of execution, an unknown one last."""
    return _PLACES.get(family, len(_PLACES))
