"""`reasons` returns notes on what explains rows, each once for all rows that it explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.comparison import ComparisonRow
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import DOUBTFUL, style_of_words
from gradscope.presentation.reports.comparing.comparison_rows import has_bound

#: The label of a cause that fits how a tensor differs.
_LIKELY: Final = "likely"

#: The most tensors of one reason that are named.
_SOME: Final = 3


def reasons(rows: Sequence[ComparisonRow]) -> Iterator[Note]:
    """Yields a note on each reason, in the order of the first of its rows.

    Args:
        rows: The rows.
    """
    explained: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for label, why in _of(row):
            explained.setdefault((label, why), []).append(naming.key_of(row.family, row.name))
    for (label, why), keys in explained.items():
        style = DOUBTFUL if label == _LIKELY else style_of_words(label)
        yield Note(label=label, text=_sentence(keys, why, ":" if label != _LIKELY else ""), style=style)


def _of(row: ComparisonRow) -> Iterator[tuple[str, str]]:
    """Yields the labels of the reasons of a row, and the reasons."""
    if row.likely:
        yield _LIKELY, row.likely
    # Where the needed tolerance is the rel_l2 in the table, or its bound, the reason would repeat the table.
    if row.why and not has_bound(row) and ("rel_l2" not in row.metrics or row.metrics["rel_l2"] != row.needed):
        yield row.status, row.why


def _sentence(keys: Sequence[str], why: str, colon: str) -> str:
    if len(keys) == 1:
        return f"{keys[0]}{colon} {why}"
    if len(keys) <= _SOME:
        names = f"{', '.join(keys[:-1])} and {keys[-1]}"
    else:
        names = f"{', '.join(keys[:_SOME])} and {len(keys) - _SOME:,} more"
    return f"{names}: {why}" if colon else f"{names}, each of which {why}"
