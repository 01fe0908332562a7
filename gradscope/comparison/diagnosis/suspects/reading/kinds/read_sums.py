"""`multiples` finds by what numbers terms are multiplied in a sum, and `sum_in_words` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The relative error up to which a value is a sum, and up to which a number is one.
_FITS: Final = 1e-4
_AGREE: Final = 1e-3

#: The share of a sum up to which a term is none of it.
_NOTHING: Final = 1e-5

#: The fewest elements for each term of a sum that show by what it is multiplied.
_FEWEST: Final = 4

#: The least ratio of the singular values of terms that are not multiples of each other.
_APART: Final = 0.05

#: The most elements of a value by which the numbers are found.
_MOST_ELEMENTS: Final = 1 << 17


def multiples(value: Array, terms: Sequence[Array]) -> Array | None:
    """Returns the numbers that terms are multiplied by in a sum, 0 for none; None where a value is no such sum."""
    step = -(-value.size // _MOST_ELEMENTS)
    columns, made = np.stack([term.ravel()[::step] for term in terms], axis=1), value.ravel()[::step]
    sizes = np.linalg.norm(columns, axis=0)
    if made.size < _FEWEST * len(terms) or not sizes.all() or not np.isfinite(sizes).all():
        return None
    found, _, _, singular = np.linalg.lstsq(columns / sizes, made, rcond=None)
    apart = singular[-1] > _APART * singular[0]  # of terms that are nearly multiples of each other, either may be more
    fits = np.linalg.norm(columns @ (found / sizes) - made) <= _FITS * np.linalg.norm(made)
    found = np.where(np.abs(found) > _NOTHING * np.linalg.norm(made), found, 0.0)
    return found / sizes if apart and fits else None


def sum_in_words(numbers: Array, names: Sequence[str]) -> str:
    """Returns a sum of multiples of values in words."""
    terms = [
        name if abs(number - 1) <= _AGREE else f"{_factor(number)} times {name}"
        for number, name in zip(numbers, names, strict=True) if number
    ]  # fmt: skip
    return " and ".join(terms)


def _factor(number: float) -> str:
    """Returns a factor with two digits, or with three where two would make it 1."""
    return f"{number:.3g}" if brief(abs(number)) == brief(1.0) else brief(number)
