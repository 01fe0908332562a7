"""`FirstPattern` finds the first of many patterns that matches a name, in no time where they are names themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from gradscope.naming.selecting.patterns import Pattern

#: An expression of texts, and one of these texts in it, whose special characters are escaped but for dots: of a name
#: such as `layers.0.weight`, few people escape them.
_TEXT: Final = r"(?:[^\\^$*+?{}\[\]|()]|\\[^0-9A-Za-z])*"
_TEXTS: Final = re.compile(rf"re:{_TEXT}(?:\|{_TEXT})*", re.DOTALL)
_ONE: Final = re.compile(rf"(?:\A|\|)({_TEXT})", re.DOTALL)
_CHARACTER: Final = re.compile(r"\\?(.)", re.DOTALL)

#: Where a text has dots that stand for any character.
_Dots: TypeAlias = tuple[int, ...]


class FirstPattern:
    """FirstPattern finds the first of several patterns that matches any spelling of a name.

    A map that `compare --write-map` writes has a rule for each tensor, with its name in full: 70,000 of them would be
    tried for 70,000 names.

    Args:
        patterns: The patterns, in order.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        #: The numbers of patterns by their texts, by where these have dots, by their lengths.
        self._of_text: defaultdict[int, defaultdict[_Dots, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        self._others: list[int] = []
        for number, pattern in enumerate(patterns):
            texts = _texts(pattern)
            if texts is None:
                self._others.append(number)
            for text, dots in texts or ():
                self._of_text[len(text)][dots].setdefault(text, number)

    def match(self, *spellings: str) -> tuple[int, re.Match[str]] | None:
        """Returns the number of the first pattern that matches any of the spellings, and the match; None for none.

        Raises:
            UsageError: Matching takes too long.
        """
        end = len(self._patterns)
        of_text = min((number for each in spellings for number in self._numbers_of_text(each)), default=end)
        for number in self._others:
            if number > of_text:
                break
            if found := self._matched(number, spellings):
                return number, found
        found = self._matched(of_text, spellings) if of_text < end else None
        return None if found is None else (of_text, found)

    def _numbers_of_text(self, name: str) -> Iterator[int]:
        """Yields the numbers of patterns of texts that match a name, among them the first."""
        for dots, numbers in self._of_text.get(len(name), {}).items():
            number = numbers.get(_with_dots(name, dots))
            if number is not None:
                yield number

    def _matched(self, number: int, spellings: Sequence[str]) -> re.Match[str] | None:
        return next(filter(None, map(self._patterns[number].regex.fullmatch, spellings)), None)


def _texts(pattern: Pattern) -> list[tuple[str, _Dots]] | None:
    """Returns the texts that a pattern matches, and where any character will do, as they have dots there.

    Returns:
        The texts and the places; None where the pattern is more than texts.
    """
    if not _TEXTS.fullmatch(pattern.spelling):
        return None
    return [_text(each) for each in _ONE.findall(pattern.spelling[3:])]


def _text(escaped: str) -> tuple[str, _Dots]:
    characters = list(_CHARACTER.finditer(escaped))
    dots = tuple(at for at, found in enumerate(characters) if found[0] == ".")
    return "".join(found[1] for found in characters), dots


def _with_dots(name: str, dots: _Dots) -> str:
    """Returns a name with dots at some places, as long as no line ends there, which a dot does not match."""
    if not dots:
        return name
    characters = list(name)
    for at in dots:
        if name[at] != "\n":
            characters[at] = "."
    return "".join(characters)
