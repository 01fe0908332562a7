r"""Patterns that select names: `encoder/*`, `param_grad/*`, `re:block\[[0-3]\]/.*`.

A glob knows `*` (any run of characters, `/` included) and `?` (one character); brackets are literal, because layer
names carry them. `re:` makes the rest a regular expression that must match the whole name. Either kind may be written
against the name or against the whole key with its family.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.errors import UsageError
from gradscope.naming.printable import printable
from gradscope.naming.several import several

#: So many names a hint tells, where none of them is near.
_FEW: Final = 12


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern: as the user spelt it, and compiled."""

    spelling: str
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, spelling: str) -> Pattern:
        """The pattern a spelling stands for.

        Raises:
            UsageError: What follows `re:` is not a regular expression.
        """
        if not spelling.startswith("re:"):
            return cls(spelling, re.compile(_glob_to_regex(spelling), re.DOTALL))
        try:
            return cls(spelling, re.compile(spelling[3:]))
        except re.error as error:
            raise UsageError(f"{spelling!r} is not a regular expression: {error}") from error

    def matches(self, *spellings: str) -> bool:
        """Whether any of `spellings` matches as a whole."""
        return any(self.regex.fullmatch(each) for each in spellings)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which names are wanted: any of `select` (all, when empty) and none of `exclude`."""

    select: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, select: str | Iterable[str] = (), exclude: str | Iterable[str] = ()) -> Selection:
        """The selection that patterns as users write them describe; a string is a list of one pattern.

        Raises:
            UsageError: A `re:` pattern is not a regular expression.
        """
        return cls(tuple(map(Pattern.parse, several(select))), tuple(map(Pattern.parse, several(exclude))))

    def wants(self, *spellings: str) -> bool:
        """Whether a thing known under `spellings` (its name, its key) is selected."""
        chosen = not self.select or any(pattern.matches(*spellings) for pattern in self.select)
        return chosen and not any(pattern.matches(*spellings) for pattern in self.exclude)

    def require_matches(self, names: Iterable[str]) -> None:
        """Refuse a `select` pattern that matches none of `names`.

        Raises:
            UsageError: A pattern selects nothing; the hint names the nearest names there are.
        """
        known = list(names)
        for pattern in self.select:
            if not any(pattern.matches(name) for name in known):
                raise UsageError(
                    f"pattern {pattern.spelling!r} selects nothing", hint=nearest_hint(pattern.spelling, known)
                )


def nearest_hint(wanted: str, known: Iterable[str]) -> str:
    """A sentence that names the names of `known` nearest to `wanted`, upper and lower case being near."""
    names = list(dict.fromkeys(known))
    near = _nearest(wanted, names)
    if near:
        return "did you mean " + ", ".join(map(printable, near)) + "?"
    if len(names) <= _FEW:
        return "there are " + ", ".join(map(printable, names)) if names else "there are no names to select from"
    return f"there are {len(names):,} names, such as {', '.join(map(printable, names[:3]))}"


def _nearest(wanted: str, names: Sequence[str]) -> list[str]:
    by_folded: dict[str, str] = {}
    for name in names:
        by_folded.setdefault(name.casefold(), name)
    near = difflib.get_close_matches(wanted.casefold(), by_folded, n=3, cutoff=0.4)
    return [by_folded[each] for each in near]


def _glob_to_regex(glob: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
