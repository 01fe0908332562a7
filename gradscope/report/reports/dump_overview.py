"""The overview of a dump on a terminal: a verdict, the findings, and the model block by block, on one screen.

What is wrong comes first, then where it began, then the numbers by which one sees it oneself, and at the end how to see
all of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.report.render.document import Document, Note, Notes, lay_out_document
from gradscope.report.render.screen import GOOD, Screen, style_of_words
from gradscope.report.tables.overview import Overview

#: The most lines of an overview, and the fewest to which a low terminal reduces it.
_MOST_LINES: Final = 40
_FEWEST_LINES: Final = 20
#: Lines that are kept for the table of blocks where there are many findings.
_FOR_BLOCKS: Final = 20
#: The most findings that are told beside the worst, and the most of one rule.
_MOST_FINDINGS: Final = 12
_FINDINGS_PER_RULE: Final = 2
#: Facts about the run that are worth a line of one screen.
_FACTS: Final = frozenset(
    {"loss", "tensors", "self-check", "examples", "statistics", "note", "incomplete"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFacts:
    """`OverviewFacts` are what an overview tells.

    Attributes:
        findings: The findings as notes, worst first.
        origins: The notes on where NaNs and infinities began.
        facts: The facts about the run, by label.
        overview: The numbers block by block.
        path: The dump's file.
    """

    findings: Sequence[Note]
    origins: Sequence[Note]
    facts: Mapping[str, str]
    overview: Overview
    path: str


def overview_document(told: OverviewFacts, screen: Screen) -> Document:
    """Returns the overview, in as many lines as the screen has, and at most 40.

    Args:
        told: What it tells.
        screen: The terminal.

    Returns:
        The verdict with the origin, other findings, the table of blocks, and how to see all.
    """
    limit = max(min(_MOST_LINES, (screen.height or _MOST_LINES + 1) - 1), _FEWEST_LINES)
    foot = Notes(notes=tuple(_how_to_see_more(told)))
    head = _fitting(lambda most: _head(told, most), _MOST_FINDINGS, screen, limit - _FOR_BLOCKS)

    def complete(room: int) -> Document:
        return (*head, told.overview.table(room), foot)

    return _fitting(complete, limit, screen, limit, fewest=3)


def _fitting(
    document: Callable[[int], Document], most: int, screen: Screen, limit: int, *, fewest: int = 0
) -> Document:
    """Returns the document for the largest number with which it has at most so many lines."""
    number = most
    while (excess := _lines(made := document(number), screen) - limit) > 0 and number > fewest:
        number = max(number - max(excess // 3, 1), fewest)
    return made


def _lines(document: Document, screen: Screen) -> int:
    return lay_out_document(document, screen).plain.count("\n")


def _head(told: OverviewFacts, most: int) -> Document:
    """Returns the verdict and at most so many other findings."""
    others = told.findings[1:]
    shown = _some_of_each_rule(others, most)
    notes = [*shown, *_and_more(len(others) - len(shown))]
    facts = (Note(label=label, text=text) for label, text in told.facts.items() if label in _FACTS)
    return (
        Notes(notes=(_verdict(told.findings), *told.origins, *facts)),
        Notes(title=f"Other findings ({len(others):,})" if shown else "", notes=tuple(notes)),
    )


def _verdict(findings: Sequence[Note]) -> Note:
    if not findings:
        return Note(label="verdict", text="nothing looks wrong", style=GOOD)
    worst = findings[0]
    return Note(label="verdict", text=f"{worst.label}: {worst.text}", style=style_of_words(worst.label))


def _some_of_each_rule(findings: Sequence[Note], most: int) -> list[Note]:
    seen: dict[str, int] = {}
    shown: list[Note] = []
    for finding in findings:
        seen[finding.label] = seen.get(finding.label, 0) + 1
        if seen[finding.label] <= _FINDINGS_PER_RULE and len(shown) < most:
            shown.append(finding)
    return shown


def _and_more(number: int) -> Iterator[Note]:
    if number:
        yield Note(label="", text=f"and {number:,} more (--full lists all)")


def _how_to_see_more(told: OverviewFacts) -> Iterator[Note]:
    text = f"gradscope show {shlex.quote(told.path)} --full; a part: --families, --select, --tensor"
    yield Note(label="more", text=text)
    yield Note(label="explain", text=f"gradscope explain {told.findings[0].label if told.findings else 'rms'}")
