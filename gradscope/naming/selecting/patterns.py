r"""Patterns select names: `encoder/*`, `param_grad/*`, `re:block\[[0-3]\]/.*`.

In a glob, `*` matches any characters, including `/`, and `?` matches one character. Brackets are literal, because layer
names contain them. After `re:`, the pattern is a regular expression that has to match in full. Both kinds are matched
against the name and against the key with its family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradscope.errors import UsageError
from gradscope.naming.one_or_many import as_tuple
from gradscope.naming.selecting.bounded_regex import BoundedRegex, MatchingTime
from gradscope.naming.selecting.nearest_names import nearest_hint

#: A whole number in a pattern, of no more digits than an iteration has.
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern stores a pattern as the user wrote it, and as a compiled regular expression."""

    spelling: str
    regex: re.Pattern[str] | BoundedRegex

    @classmethod
    def parse(cls, spelling: str, matching_time: MatchingTime | None = None) -> Pattern:
        """Returns the pattern of a spelling.

        Args:
            spelling: As the user wrote it.
            matching_time: What its matches may take together with those of other patterns; by default alone.

        Raises:
            UsageError: The text after `re:` is not a regular expression.
        """
        if not spelling.startswith("re:"):
            return cls(spelling, re.compile(_glob_to_regex(spelling), re.DOTALL))
        try:
            return cls(spelling, BoundedRegex(spelling[3:], matching_time))
        except re.error as error:
            raise UsageError(f"{spelling[3:]!r} is not a regular expression: {error}") from error

    @property
    def is_name(self) -> bool:
        """Whether it is a name, which matches nothing but itself."""
        return not self.spelling.startswith("re:") and not {"*", "?"}.intersection(self.spelling)

    def matches(self, *spellings: str) -> bool:
        """Returns whether any of `spellings` matches in full."""
        return any(self.regex.fullmatch(each) for each in spellings)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection selects the names that match any of `select` (all names if it is empty) and none of `exclude`."""

    select: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, select: str | Iterable[str] | None = (), exclude: str | Iterable[str] | None = ()) -> Selection:
        """Returns the selection of patterns as users write them; a string is a list of one pattern.

        Raises:
            UsageError: A `re:` pattern is not a regular expression.
        """
        return cls(tuple(map(Pattern.parse, as_tuple(select))), tuple(map(Pattern.parse, as_tuple(exclude))))

    def selects(self, *spellings: str) -> bool:
        """Returns whether a tensor is selected, by any of its `spellings` (its name and its key)."""
        chosen = not self.select or any(pattern.matches(*spellings) for pattern in self.select)
        return chosen and not self.excludes(*spellings)

    def excludes(self, *spellings: str) -> bool:
        """Returns whether a tensor is excluded, by any of its `spellings`."""
        return any(pattern.matches(*spellings) for pattern in self.exclude)

    @property
    def numbers(self) -> frozenset[int]:
        """The whole numbers in the `select` patterns, among them the iterations that they name."""
        found = (number for pattern in self.select for number in _NUMBER.findall(pattern.spelling))
        return frozenset(map(int, found))

    def require_matches(self, names: Iterable[str]) -> None:
        """Raises an error for a `select` pattern that matches none of `names`.

        Raises:
            UsageError: A pattern selects nothing; the hint has the nearest names.
        """
        known = list(names) if self.select else []
        for pattern in self.select:
            if not any(pattern.matches(name) for name in known):
                raise UsageError(
                    f"pattern {pattern.spelling!r} selects nothing", hint=nearest_hint(pattern.spelling, known)
                )


def _glob_to_regex(glob: str) -> str:
    first, *others = ("".join("." if char == "?" else re.escape(char) for char in part) for part in glob.split("*"))
    if not others:
        return first
    # A part may stay where it is found first. Were it looked for again behind that, a long name and a few stars would
    # take for ever.
    return "".join((first, *(f"(?>.*?{part})" for part in others[:-1] if part), ".*", others[-1]))
