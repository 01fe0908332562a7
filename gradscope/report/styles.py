"""Styles: how meaning is coloured on a terminal. Colour only repeats what the words say."""

from __future__ import annotations

from typing import Final

TITLE: Final = "bold"
HEADING: Final = "dim bold"
DIM: Final = "dim"
GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"

#: Words after which nothing that follows can be trusted, or that are the verdict itself.
_BAD_WORDS: Final = frozenset({"nonfinite", "exploding", "self-check", "different", "missing", "extra"})
_GOOD_WORDS: Final = frozenset({"same"})


def style_of_words(text: str) -> str:
    """The style of remarks: names of findings, a status, separated by commas."""
    words = frozenset(text.replace(",", " ").split())
    if words & _BAD_WORDS:
        return BAD
    return GOOD if words & _GOOD_WORDS else DOUBTFUL
