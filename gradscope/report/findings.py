"""Findings as people read them: the rule, the tensor, why, and where in the user's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from gradscope import naming
from gradscope.report.screen import Screen
from gradscope.report.styles import DIM, TITLE, style_of_words
from gradscope.stats import Finding

#: How many findings of one rule a terminal shows: the rest of hundreds says nothing new.
_SHOWN_PER_RULE: Final = 10


def lay_out_findings(findings: Sequence[Finding], screen: Screen) -> Text:
    """Findings as paragraphs under a title; no text where there are none.

    Args:
        findings: In the order in which they are to stand.
        screen: Where the text goes; on a terminal, a rule that found much is cut short and says so.

    Returns:
        Lines, each with its line feed.
    """
    text = Text()
    if not findings:
        return text
    text.append(f"Findings ({len(findings):,})\n", TITLE)
    indent = " " * (max(len(each.rule) for each in findings) + 2)
    shown: Counter[str] = Counter()
    for finding in findings:
        shown[finding.rule] += 1
        if screen.width is None or shown[finding.rule] <= _SHOWN_PER_RULE:
            text.append(screen.show(finding.rule).ljust(len(indent)), style_of_words(finding.rule))
            text.append(screen.wrap(sentence(finding, screen), indent) + "\n")
    for rule, number in shown.items():
        if screen.width is not None and number > _SHOWN_PER_RULE:
            text.append(f"{indent}and {number - _SHOWN_PER_RULE:,} more of {rule}; --format json has them all\n", DIM)
    return text


def sentence(finding: Finding, screen: Screen) -> str:
    """What was found in which tensor, and where it is made."""
    place = f" ({finding.source})" if finding.source else ""
    return screen.show(f"{naming.key_of(finding.family, finding.name)} {finding.why}{place}")

