"""`LearntNames` tells whether two values have the names of a pair with other numbers, as those of another layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gradscope.comparison.pairing.matching import Match
from gradscope.naming import ACTIVATION, split_key

_NUMBER: Final = re.compile(r"(\d{1,9})")


#: How many names are kept apart in words and numbers.
_KEPT: Final = 1 << 14


class _Name(NamedTuple):
    """A `_Name` is one without its numbers, and these."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]


class LearntNames:
    """LearntNames knows what the values of one program are called in the other.

    Args:
        matches: The pairs that are known.
    """

    def __init__(self, matches: Iterable[Match]) -> None:
        # The first and the last pair show as much as all: names differ in the numbers of layers, and others are alike.
        self._first: dict[tuple[tuple[str, ...], ...], tuple[_Name, _Name]] = {}
        self._last: dict[tuple[tuple[str, ...], ...], tuple[_Name, _Name]] = {}
        for match in matches:
            family, name = split_key(match.ref)
            if family == ACTIVATION and len(match.recipe.keys) == 1:
                pair = _parsed(name), _parsed(split_key(match.cand)[1])
                words = pair[0].words, pair[1].words
                self._first.setdefault(words, pair)
                self._last[words] = pair

    def agree(self, ref: str, cand: str) -> bool:
        """Returns whether a pair has these names with other numbers, which are as far from them in both programs.

        Args:
            ref: The name of a value of the reference.
            cand: The name of a value of the candidate.
        """
        return any(self._same_steps(ref, cand))

    def refute(self, ref: str, cand: str) -> bool:
        """Returns whether pairs have these names with other numbers, which are not as far from them in both programs.

        Args:
            ref: As above.
            cand: As above.
        """
        found = [*self._same_steps(ref, cand)]
        return bool(found) and not any(found)

    def _same_steps(self, ref: str, cand: str) -> Iterator[bool]:
        """Yields for each known pair of the same words whether the numbers are as far from it in both programs."""
        own, other = _parsed(ref), _parsed(cand)
        known = (pairs.get((own.words, other.words)) for pairs in (self._first, self._last))
        yield from (_steps(pair[0], own) == _steps(pair[1], other) for pair in known if pair is not None)


def called_alike(known: Iterable[Match], others: Iterable[Match]) -> Iterator[Match]:
    """Yields pairs of values that have the names of known ones with other numbers, as those of another layer.

    Args:
        known: The known pairs.
        others: The others.
    """
    names = LearntNames(known)
    for match in others:
        family, name = split_key(match.ref)
        if family == ACTIVATION and len(match.recipe.keys) == 1 and names.agree(name, split_key(match.cand)[1]):
            yield match


@lru_cache(maxsize=_KEPT)
def _parsed(name: str) -> _Name:
    words: Sequence[str] = _NUMBER.split(name)
    return _Name(tuple(words[::2]), tuple(map(int, words[1::2])))


def _steps(known: _Name, name: _Name) -> list[int]:
    """Returns how far the numbers of a name are from those of one with the same words, where they are others."""
    return [here - there for there, here in zip(known.numbers, name.numbers, strict=True) if here != there]
