"""`FunctionDifferences` tells which functions of the same values two layers without parameters are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.functions.divided_rows import divided_rows
from gradscope.comparison.diagnosis.likely.layers.functions.gated_values import gated_values
from gradscope.comparison.diagnosis.likely.layers.functions.modulated_values import modulated_values
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import Both, PossibleFunctions
from gradscope.comparison.diagnosis.likely.layers.functions.resized_values import resized_values
from gradscope.comparison.diagnosis.likely.layers.functions.rotated_values import rotation_in_words
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import PARAM, printable, split_key

#: The most elements of a value of which functions are tried.
_MOST_ELEMENTS: Final = 1 << 18

#: The relative error up to which a value is a function.
_FITS: Final = 1e-4

#: How many times the error of the nearest function another one may have that is told as well.
_AS_GOOD: Final = 2.0


def possible_functions(
    values: Sequence[Both], names: Sequence[str], shape: Sequence[int]
) -> Iterator[PossibleFunctions]:
    """Yields the functions that may be made of values.

    Args:
        values: The values of both programs.
        names: Their names, as they are printed.
        shape: The shape of what is made, or of what is computed of it.
    """
    yield from gated_values(values, names)
    yield from modulated_values(values, names)
    yield from resized_values(values, names, shape)


def nearest(errors: dict[str, float]) -> str:
    """Returns the function of the smallest error, in words, and those that are as near but not the same.

    Args:
        errors: The errors of functions by their words; one at least.
    """
    least = min(errors.values())
    # Of functions that make the same of what is read, the first is meant.
    by_errors = {error: words for words, error in reversed(errors.items()) if error <= _AS_GOOD * least}
    return " or ".join(reversed(by_errors.values()))


class FunctionDifferences:
    """FunctionDifferences finds the functions that the values of a pair are of what they are computed from.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about two functions of the same values; "" where they are not known to be others.

        Args:
            match: The pair of the values.
            read: The pairs of what they are computed from, parameters among them.
        """
        value = self._both(match)
        if value is None or any(split_key(each.ref)[0] == PARAM for each in read):
            return ""
        if not match.recipe.steps and (words := divided_rows(*value)):
            return words
        pairs = [self._both(each) for each in read]
        known = [pair for pair in pairs if pair is not None]
        if not known or len(known) < len(pairs):
            return ""
        names = [f"`{printable(split_key(each.ref)[1])}`" for each in read]
        with np.errstate(all="ignore"):  # functions are applied to values that they are not made for
            return next(filter(None, _told(value, known, names)), "")

    def _both(self, match: Match) -> Both | None:
        if math.prod(self._dumps.ref.entry(match.ref).shape) > _MOST_ELEMENTS:
            return None
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else Both(one, other)


def _told(value: Both, read: Sequence[Both], names: Sequence[str]) -> Iterator[str]:
    """Yields clauses about functions of what is read."""
    for possible in possible_functions(read, names, value.own.shape):
        if possible.argument.own.shape == value.own.shape:
            own, other = (
                _fitting(possible.functions(of_own=of_own), side)
                for of_own, side in zip((True, False), value, strict=True)
            )
            if own and other and own.keys().isdisjoint(other):
                yield f"is {possible.phrase(nearest(own))} in the reference, and {nearest(other)} in the candidate"
    for each, name in zip(read, names, strict=True):
        own, other = (rotation_in_words(one, two) for one, two in zip(value, each, strict=True))
        if own and other and own != other:
            yield f"rotates {name} by {other}, and the reference by {own}"


def _fitting(functions: Iterable[tuple[str, Array]], value: Array) -> dict[str, float]:
    """Returns the relative errors of the functions that make a value, by their words."""
    norm = float(np.linalg.norm(value))
    errors = {words: float(np.linalg.norm(made - value)) / norm for words, made in functions} if norm else {}
    return {words: error for words, error in errors.items() if error <= _FITS}
