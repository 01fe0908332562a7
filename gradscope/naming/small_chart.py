"""A small chart is a few lines as inline SVG, for a notebook: no script, no style sheet, a few kilobytes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.naming.printable import printable

_WIDTH: Final = 560
_HEIGHT: Final = 130
_LEFT: Final = 56
_TOP: Final = 8
#: Readable on white and on black.
_COLOURS: Final = ("#2a87c8", "#d9731a", "#2f9e77", "#b0589b")
#: The most points of a line; of more, one stands for several neighbours.
_MOST_POINTS: Final = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallChart:
    """A `SmallChart` shows numbers on a logarithmic axis.

    Attributes:
        title: What it shows.
        lines: The numbers of each line by its label, all of one length; what is None, zero, negative or not finite is
            left out.
    """

    title: str
    lines: Mapping[str, Sequence[float | None]]

    def svg(self) -> str:
        """Returns the chart as an element; "" where it has fewer than two points to draw."""
        lines = {label: _thinned(values) for label, values in self.lines.items()}
        known = [math.log10(value) for values in lines.values() for value in values if value is not None]
        if len(known) < 2:
            return ""
        low, high = min(known), max(known)
        return "".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + 42}" role="img" ',
                f'font-family="sans-serif" font-size="11" fill="currentColor"><title>{_escaped(self.title)}</title>',
                f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - 8}" height="{_HEIGHT - _TOP}" fill="none" ',
                'stroke="currentColor" stroke-opacity="0.3"/>',
                f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{10**high:.2g}</text>',
                f'<text x="{_LEFT - 6}" y="{_HEIGHT}" text-anchor="end">{10**low:.2g}</text>',
                f'<text x="{_LEFT}" y="{_HEIGHT + 16}">{_escaped(self.title)}</text>',
                *_drawn(lines, low, high),
                "</svg>",
            )
        )


def _drawn(lines: Mapping[str, Sequence[float | None]], low: float, high: float) -> Iterator[str]:
    for number, (label, values) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        x_step = (_WIDTH - _LEFT - 16) / max(len(values) - 1, 1)
        points = " ".join(
            f"{_LEFT + 4 + at * x_step:.1f},{_vertical(math.log10(value), low, high):.1f}"
            for at, value in enumerate(values)
            if value is not None
        )
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
        yield f'<text x="{_LEFT + number * 130}" y="{_HEIGHT + 32}" fill="{colour}">{_escaped(label)}</text>'


def _vertical(logarithm: float, low: float, high: float) -> float:
    share = 0.5 if low == high else (logarithm - low) / (high - low)
    return _HEIGHT - 4 - share * (_HEIGHT - _TOP - 8)


def _thinned(values: Sequence[float | None]) -> list[float | None]:
    """Returns at most so many values: the largest of neighbours."""
    drawn = [value if value is not None and math.isfinite(value) and value > 0 else None for value in values]
    together = -(-len(drawn) // _MOST_POINTS) or 1
    groups = (drawn[start : start + together] for start in range(0, len(drawn), together))
    return [max((value for value in group if value is not None), default=None) for group in groups]


def _escaped(text: str) -> str:
    return html.escape(printable(text))
