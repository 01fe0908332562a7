"""Markdown, and the parts of docstrings that pages show."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Final

#: A bar inside a cell.
BAR: Final = r"\|"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)


def code(*words: object) -> str:
    return ", ".join(f"`{word}`" for word in words)


def first_sentence(docstring: str | None) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())


def attributes(kind: type) -> dict[str, str]:
    """The entries of the section `Attributes` of a class's docstring, by name."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next section
    entries = re.split(r"^ {4}(?=\w+: )", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, _, text in (entry.partition(": ") for entry in entries) if name}


def as_sentence(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}."
