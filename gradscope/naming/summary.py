"""Summaries show an object at a prompt and in a notebook: one line, a small table as text, and the same as HTML.

Everything that came from a user's program or from a file is escaped: for a terminal as names are, in HTML as text.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gradscope.naming.printable import printable
from gradscope.naming.small_chart import SmallChart

Cell: TypeAlias = str | int | float | None

#: The most rows of a summary; the others are counted.
_MOST_ROWS: Final = 30
_GAP: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A `Summary` is what an object shows of itself.

    Attributes:
        line: The object in one line.
        headings: The columns of its table, the first of names.
        rows: The rows; an empty cell is None.
        total: How many rows there are, where not all of them were made; None for as many as given.
        chart: What HTML shows above the table; None for nothing.
    """

    line: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    total: int | None = None
    chart: SmallChart | None = None

    @classmethod
    def most(cls) -> int:
        """Returns the largest number of rows that are shown."""
        return _MOST_ROWS

    def one_line(self, kind: str) -> str:
        """Returns what `repr` shows of an object of a kind, such as `Dump`."""
        return f"<gradscope.{kind} {printable(self.line)}>"

    def text(self) -> str:
        """Returns the line and the table."""
        lines = [list(self.headings), *([_shown(cell) for cell in row] for row in self.rows[:_MOST_ROWS])]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        laid_out = [_GAP.join(_padded(line, widths)).rstrip() for line in lines if self.headings]
        return "\n".join([printable(self.line), *laid_out, *self._more()])

    def html(self) -> str:
        """Returns the line and the table as HTML without styles or scripts."""
        heads = "".join(f"<th>{_escaped(heading)}</th>" for heading in self.headings)
        rows = ("".join(f"<td>{_escaped(_shown(cell))}</td>" for cell in row) for row in self.rows[:_MOST_ROWS])
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if self.headings else ""
        chart = "" if self.chart is None else self.chart.svg()
        return (
            f"<div><p>{_escaped(self.line)}</p>{chart}{table}{''.join(f'<p>{each}</p>' for each in self._more())}</div>"
        )

    def _more(self) -> list[str]:
        left_out = (len(self.rows) if self.total is None else self.total) - min(len(self.rows), _MOST_ROWS)
        return [f"and {left_out:,} more"] if left_out > 0 else []


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]


def _escaped(text: str) -> str:
    return html.escape(printable(text))
