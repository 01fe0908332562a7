"""The names nearest to one that was requested, for hints."""

from __future__ import annotations

import difflib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gradscope.errors import MissingKeyError
from gradscope.naming.paths import without_iterations, without_occurrence
from gradscope.naming.printable import printable

#: The largest number of names that a hint lists where none is similar.
_FEW: Final = 12

#: A hint has at most so many names that are near, or that have a requested part of at least so many characters.
_NEAR: Final = 3
_PART: Final = 3

#: The share of the best name's likeness that another one in a hint has at least.
_OF_BEST: Final = 0.75

#: A hint takes at most 0.1 s: characters of a name that are compared, names that are looked at, and the product of the
#: number of names and the length of the requested one from which only likely names are compared.
_COMPARED: Final = 200
_MOST_NAMES: Final = 50_000
_MOST_WORK: Final = 2_000


def nearest_hint(requested: str, known: Iterable[str]) -> str:
    """Returns a hint with the names of `known` that are most similar to `requested`, or have it within them."""
    names = list(dict.fromkeys(known))
    near = nearest(requested, names)
    if near:
        return did_you_mean(near)
    if len(names) == 1:
        return f"there is only {printable(names[0])}"
    if len(names) <= _FEW:
        return "there are " + ", ".join(map(printable, names)) if names else "there are no names to select from"
    return f"there are {len(names):,} names, such as {', '.join(map(printable, names[:3]))}"


def did_you_mean(names: Iterable[str]) -> str:
    """Returns a hint that asks whether one of some names was meant."""
    return "did you mean " + ", ".join(map(printable, names)) + "?"


def nearest(requested: str, names: Sequence[str], *, similar: float = 0.4) -> list[str]:
    """Returns the few of some names that are most similar to `requested`, or have it within them; often none.

    Args:
        requested: The name that was requested.
        names: The names that there are.
        similar: The least share of letters that two similar names have in common, in order.
    """
    # A layer of a loop, or of shards, has a name in each iteration.
    iterations = (each for each in names[:_MOST_NAMES] if without_iterations(without_occurrence(each)) == requested)
    if own := list(itertools.islice(iterations, _NEAR)):
        return own
    # Comparing takes the product of both lengths: 0.3 s for two names of 1,000 characters.
    folded = requested[:_COMPARED].casefold()
    by_folded: dict[str, str] = {}
    for name in names:
        by_folded.setdefault(name[:_COMPARED].casefold(), name)
    candidates = list(by_folded)
    if len(candidates) * len(folded) > _MOST_WORK:
        # Of too many names, those with the most common letters, which takes no product.
        letters = Counter(folded)
        most = max(_MOST_WORK // len(folded), _FEW)
        candidates = heapq.nlargest(most, candidates[:_MOST_NAMES], key=lambda each: _common(letters, each))
    near = difflib.get_close_matches(folded, candidates, n=_NEAR, cutoff=similar)
    likeness = [difflib.SequenceMatcher(None, each, folded).ratio() for each in near]
    near = [each for each, ratio in zip(near, likeness, strict=True) if ratio >= _OF_BEST * likeness[0]]
    if not near and len(folded) >= _PART:
        near = list(itertools.islice((each for each in by_folded if folded in each), _NEAR))
    return [by_folded[each] for each in near]


def _common(letters: Counter[str], name: str) -> float:
    """Returns the share of the letters of two names that they have in common."""
    # Counting each letter in the name takes a fifth of the time of counting all letters of the name.
    common = sum([min(name.count(letter), most) for letter, most in letters.items()])
    return 2 * common / (letters.total() + len(name) or 1)


def missing_key(said: str, key: object, known: Iterable[str]) -> MissingKeyError:
    """Returns the error of a mapping without a key, which may be anything, as of any mapping.

    Args:
        said: How the message begins, before the key.
        key: The key.
        known: The keys that there are.
    """
    if not isinstance(key, str):
        return MissingKeyError(f"{said} {key!a}: keys are strings")
    return MissingKeyError(f"{said} {printable(key)}", hint=nearest_hint(key, known))
