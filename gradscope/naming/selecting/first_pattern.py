"""`FirstPattern` finds the first of many patterns that matches a name, in no time where they are names themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gradscope.naming.selecting.patterns import Pattern

#: An expression of texts, and one of these texts in it, whose special characters are escaped.
_TEXT: Final = r"(?:[^\\.^$*+?{}\[\]|()]|\\[^0-9A-Za-z])*"
_TEXTS: Final = re.compile(rf"re:{_TEXT}(?:\|{_TEXT})*", re.DOTALL)
_ONE: Final = re.compile(rf"(?:\A|\|)({_TEXT})", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class FirstPattern:
    """FirstPattern finds the first of several patterns that matches any spelling of a name.

    A map that `compare --write-map` writes has a rule for each tensor, with its name in full: 70,000 of them would be
    tried for 70,000 names.

    Args:
        patterns: The patterns, in order.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._of_text: dict[str, int] = {}
        self._others: list[int] = []
        for number, pattern in enumerate(patterns):
            texts = _texts(pattern)
            if texts is None:
                self._others.append(number)
            for text in texts or ():
                self._of_text.setdefault(text, number)

    def match(self, *spellings: str) -> tuple[int, re.Match[str]] | None:
        """Returns the number of the first pattern that matches any of the spellings, and the match; None for none.

        Raises:
            UsageError: Matching takes too long.
        """
        end = len(self._patterns)
        of_text = min((self._of_text.get(each, end) for each in spellings), default=end)
        for number in self._others:
            if number > of_text:
                break
            if found := self._matched(number, spellings):
                return number, found
        found = self._matched(of_text, spellings) if of_text < end else None
        return None if found is None else (of_text, found)

    def _matched(self, number: int, spellings: Sequence[str]) -> re.Match[str] | None:
        return next(filter(None, map(self._patterns[number].regex.fullmatch, spellings)), None)


def _texts(pattern: Pattern) -> list[str] | None:
    """Returns the texts that a pattern matches, where it is nothing but texts; None where it is more."""
    if not _TEXTS.fullmatch(pattern.spelling):
        return None
    return [_ESCAPED.sub(r"\1", each) for each in _ONE.findall(pattern.spelling[3:])]
