"""The overview of a dump fits one screen of a terminal: a verdict, the findings, and the model block by block.

What is wrong comes first, then where it began, then the numbers by which one sees it oneself, and at the end how to see
all of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.sources.foreign import NOTE
from gradscope.presentation.render.document import Document, Note, Notes, fitted
from gradscope.presentation.render.screen import DOUBTFUL, GOOD, Screen, style_of_words
from gradscope.presentation.tables.by_block.block_cells import CELLS
from gradscope.presentation.tables.by_block.contents import block_tree
from gradscope.presentation.tables.by_block.overview import Overview, Shown
from gradscope.presentation.tables.dump_rows import Row
from gradscope.presentation.tables.facts import ALARM, MAY_BE_MEANT

#: The share of the lines that is kept for the table of blocks where there are many findings.
_FOR_BLOCKS: Final = 1 / 2
#: The fewest lines of that table.
_FEWEST_BLOCKS: Final = 3
#: The most findings that are shown beside the worst, and the most of one rule.
_MOST_FINDINGS: Final = 12
_FINDINGS_PER_RULE: Final = 2
#: Facts about the run that are worth a line of one screen.
_FACTS: Final = frozenset(
    {ALARM, "loss", "gradients", "fed", "tensors", "frozen", "satisfied", "at zero", *MAY_BE_MEANT, "self-check",
     "examples", "statistics", "note", "incomplete"}
)  # fmt: skip
#: What is said of a dump that has neither a finding nor a fact that may be a fault.
_NOTHING_WRONG: Final = "nothing looks wrong"
#: What is said in place of that of tensors of which nothing but their values is known.
_NOTHING_JUDGED: Final = "no finding in the values alone; nothing else is judged, as the file has no manifest"
_RANGES: Final = "name[a..b] is blocks a to b on one line, low..high the extremes over them"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFacts:
    """`OverviewFacts` are what an overview shows.

    Attributes:
        findings: The findings as notes, worst first.
        origins: The notes on where NaNs and infinities began, and on what to do about the worst finding.
        facts: The facts about the run, by label.
        overview: The numbers block by block.
        path: The dump's file.
    """

    findings: Sequence[Note]
    origins: Sequence[Note]
    facts: Mapping[str, str]
    overview: Overview
    path: str


def dump_blocks(rows: Sequence[Row], layers: Sequence[Layer], notes: Mapping[str, Sequence[str]]) -> Overview:
    """Returns the numbers of a dump block by block.

    Args:
        rows: All rows of the dump, in execution order.
        layers: Its layers.
        notes: The rules that found something in a tensor, by its key, the worst first.
    """
    shown = Shown(title=f"Block by block ({len(rows):,} tensors)", cells=CELLS, ranges=_RANGES)
    return Overview(block_tree(rows, layers, notes), shown, notes)


def overview_document(contents: OverviewFacts, screen: Screen) -> Document:
    """Returns the overview, in as many lines as the screen has, and at most 40.

    Args:
        contents: What it shows.
        screen: The terminal.

    Returns:
        The verdict with the origin, other findings, the table of blocks, and how to see all.
    """
    foot = Notes(notes=tuple(_how_to_see_more(contents)))
    for_head = int(screen.overview_lines * (1 - _FOR_BLOCKS))
    head = fitted(lambda most: _head(contents, most), screen, most=_MOST_FINDINGS, fewest=0, lines=for_head)

    def complete(room: int) -> Document:
        return (*head, contents.overview.table(room), foot)

    return fitted(complete, screen, most=screen.overview_lines, fewest=_FEWEST_BLOCKS)


def _head(contents: OverviewFacts, most: int) -> Document:
    """Returns the verdict and at most so many other findings."""
    others = contents.findings[1:]
    shown = _some_of_each_rule(others, most)
    notes = [*shown, *_and_more(len(others) - len(shown))]
    facts = (Note(label=label, text=text) for label, text in contents.facts.items() if label in _FACTS)
    return (
        Notes(notes=(verdict_note(contents.findings, contents.facts), *contents.origins, *facts)),
        Notes(title=f"Other findings ({len(others):,})" if shown else "", notes=tuple(notes)),
    )


def verdict_note(findings: Sequence[Note], facts: Mapping[str, str]) -> Note:
    """Returns the verdict on a dump: its worst finding, or that there is none.

    Args:
        findings: The findings as notes, worst first.
        facts: The facts about the run, by label.
    """
    if not findings:
        told = _told_apart(facts)
        seen = f"no finding; look at {' and '.join(map(repr, told))}, which may be meant"
        if facts.get(ALARM):  # which says how the step differs from those before it
            told, seen = [ALARM], f"no finding in this step alone; look at {ALARM!r}, which the run raised here"
        if not told and facts.get("note", "").startswith(NOTE):
            return Note(label="verdict", text=_NOTHING_JUDGED)
        return Note(label="verdict", text=seen if told else _NOTHING_WRONG, style=DOUBTFUL if told else GOOD)
    worst = findings[0]
    return Note(label="verdict", text=f"{worst.label}: {worst.text}", style=style_of_words(worst.label))


def _told_apart(facts: Mapping[str, str]) -> list[str]:
    """Returns the labels of the facts that may be a fault and may be meant."""
    return [label for label in MAY_BE_MEANT if facts.get(label)]


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


def _how_to_see_more(contents: OverviewFacts) -> Iterator[Note]:
    text = f"gradscope show {shlex.quote(contents.path)} --full; a part: --families, --select, --tensor"
    yield Note(label="more", text=text)
    words = (*(each.label for each in contents.findings[:1]), *_told_apart(contents.facts), "rms")
    yield Note(label="explain", text=f"gradscope explain {shlex.quote(words[0])}")
