"""Numbers are written as people read them: short, aligned, and never rounded to a wrong meaning.

"0" is only an exact zero, and 100% is only all. A number has three significant digits; an integer has all of its
digits. One column has one *notation*, so that sizes compare at a glance: decimals, as many in each number as the
smallest needs for three significant digits, or exponents in each where that would take too many digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

#: The range of magnitudes that are readable without an exponent.
_PLAIN_FROM: Final = 1e-3
_PLAIN_TO: Final = 9999.5
#: The most digits, before and after the point, of a number with as many decimals as the others of its column.
_MOST_DIGITS: Final = 6

#: The range of magnitudes whose exponents have two digits.
_SHORT_FROM: Final = 1e-98
_SHORT_TO: Final = 1e98

#: The prefix of each power of a thousand, and the smallest number that rounds to the next.
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_NEXT_PREFIX: Final = 999.5


@dataclass(frozen=True, slots=True)
class Range:
    """A `Range` is the lowest and the highest of several numbers."""

    low: float
    high: float


def number(value: float) -> str:
    """Returns one number by itself as text."""
    return _plain(value) if _reads_plain(value) else _SCIENTIFIC.written(value)


def share(value: float) -> str:
    """Returns a share from 0 to 1 in percent; nearly nothing and nearly all are shown as such."""
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def count(value: float) -> str:
    """Returns a number of things with thousands separators."""
    return f"{value:,}"


def amount(value: float) -> str:
    """Returns a large number of things with three digits, in thousands (k), millions (M), billions (G) and so on.

    A count below a thousand has all of its digits.
    """
    size, power = float(value), 0
    while abs(size) >= _NEXT_PREFIX and power < len(_PREFIXES) - 1:
        size, power = size / 1000, power + 1
    return f"{_plain(size)} {_PREFIXES[power]}" if power else str(value)


def number_column(cells: Sequence[float | Range | None]) -> list[str]:
    """Returns the numbers of one column in one notation, aligned at the decimal point; blank where there is none."""
    if Range in map(type, cells):
        return _column(cells, _notation([bound for cell in cells for bound in _bounds(cell)]).written, _on_the_point)
    return _with_blanks(_of_one_width(_present(cells)), cells)


def share_column(cells: Sequence[float | Range | None]) -> list[str]:
    """Returns the shares of one column, with percent signs above each other."""
    return _column(cells, share, _to_the_right)


def count_column(cells: Sequence[float | Range | None]) -> list[str]:
    """Returns the counts of one column, with units above each other."""
    return _column(cells, count, _to_the_right)


def amount_column(cells: Sequence[float | Range | None]) -> list[str]:
    """Returns the amounts of one column, aligned to the right."""
    return _column(cells, amount, _to_the_right)


def _column(
    cells: Sequence[float | Range | None],
    written: Callable[[float], str],
    aligned: Callable[[Sequence[str]], list[str]],
) -> list[str]:
    if Range not in map(type, cells):
        return _with_blanks(aligned(list(map(written, _present(cells)))), cells)
    # A range whose ends are written alike is one number to its reader.
    bounds = [list(dict.fromkeys(written(bound) for bound in _bounds(cell))) for cell in cells]
    lows = [each[0] if each else "" for each in bounds]
    highs = [f"..{each[1]}" if len(each) > 1 else "" for each in bounds]
    if not any(highs):
        return aligned(lows)
    width = max(map(len, highs))
    return [low + high.ljust(width) for low, high in zip(_to_the_right(lows), highs, strict=True)]


def _present(cells: Sequence[float | Range | None]) -> Sequence[float]:
    """Returns the numbers of cells without a range."""
    found = [cell for cell in cells if cell is not None] if None in cells else cells
    return cast("Sequence[float]", found)


def _with_blanks(texts: list[str], cells: Sequence[float | Range | None]) -> list[str]:
    """Returns texts of one width, those of the cells that are not None, with a blank for each that is."""
    if len(texts) == len(cells):
        return texts
    blank, rest = " " * len(texts[0]) if texts else "", iter(texts)
    return [blank if cell is None else next(rest) for cell in cells]


def _bounds(cell: float | Range | None) -> tuple[float, ...]:
    if cell is None:
        return ()
    return (cell.low, cell.high) if isinstance(cell, Range) else (cell,)


def _reads_plain(value: float) -> bool:
    return _has_no_digits_to_lose(value) or _PLAIN_FROM <= abs(value) < _PLAIN_TO


def _of_one_width(values: Sequence[float]) -> list[str]:
    """Returns numbers in one notation, aligned at the decimal point."""
    plain = _plain_array(values)
    notation = _notation(values, plain)
    if plain is None or not plain.all():
        return _on_the_point(list(map(notation.written, values)))
    if notation is _SCIENTIFIC and not (np.abs(plain).min() > _SHORT_FROM and np.abs(plain).max() < _SHORT_TO):
        return _on_the_point(list(map(notation.conversion.__mod__, values)))
    # All have as many characters behind the point, so that the largest or the least is the longest: asked once for all,
    # this takes half of the time of looking at each.
    width = max(len(notation.conversion % bound) for bound in (plain.max(), plain.min()))
    return list(map(f"%{width}{notation.conversion[1:]}".__mod__, values))


@dataclass(frozen=True, slots=True)
class _Notation:
    """_Notation has the conversion, of Python's `%` operator, of the numbers of one column."""

    conversion: str

    def written(self, value: float) -> str:
        """Returns one number as text."""
        return _plain(value) if _has_no_digits_to_lose(value) else self.conversion % value


_SCIENTIFIC: Final = _Notation("%.2e")


def _notation(values: Sequence[float], plain: npt.NDArray[np.float64] | None = None) -> _Notation:
    """Returns the notation of the numbers of one column; `plain` is what `_plain_array` returns of them."""
    # The smallest and the largest decide for all.
    if plain is None:
        magnitudes = np.array([abs(value) for value in values if not _has_no_digits_to_lose(value)])
    else:
        magnitudes = np.abs(plain[plain != 0])
    if not magnitudes.size:
        return _SCIENTIFIC
    least, most = float(magnitudes.min()), float(magnitudes.max())
    decimals = max(2 - _exponent(least), 0)
    fits = max(_exponent(most), 0) + 1 + decimals <= _MOST_DIGITS
    return _Notation(f"%.{decimals}f") if _reads_plain(least) and _reads_plain(most) and fits else _SCIENTIFIC


def _plain(value: float) -> str:
    if _has_no_digits_to_lose(value):
        return f"{value:.0f}" if isinstance(value, float) else str(value)
    return f"{value:.{max(2 - _exponent(value), 0)}f}"


def _exponent(value: float) -> int:
    """Returns the exponent of a number after rounding to three digits: 0.9996 is 1.00 and not 1.000."""
    return int(f"{value:.2e}".partition("e")[2])


def _plain_array(values: Sequence[float]) -> npt.NDArray[np.float64] | None:
    """Returns numbers as an array; None where one of them is no float, or is not finite."""
    # Asked once for all, which takes a third of the time of asking for each.
    if {*map(type, values)} != {float}:
        return None
    found = np.array(values)
    return found if np.isfinite(found).all() else None


def _has_no_digits_to_lose(value: float) -> bool:
    """Returns whether a value is written the same in any notation: an integer, zero, or not finite."""
    return isinstance(value, int) or not math.isfinite(value) or not value


def _on_the_point(texts: Sequence[str]) -> list[str]:
    """Returns texts of one width: numbers aligned at the decimal point, words such as `nan` to the right."""
    if len({len(text) - text.rfind(".") if "." in text else 0 for text in texts if text}) < 2:
        return _to_the_right(texts)
    split = [_split(text) for text in texts]
    head = max((len(each[0]) for each in split), default=0)
    tail = max((len(each[1]) for each in split), default=0)
    width = max([head + tail, *map(len, texts)])
    aligned = [f"{before:>{width - tail}}{after:<{tail}}" for before, after in split]
    return [line if line.strip() else text.rjust(width) for line, text in zip(aligned, texts, strict=True)]


def _to_the_right(texts: Sequence[str]) -> list[str]:
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def _split(text: str) -> tuple[str, str]:
    """Returns the text before the decimal point, and the rest with the point; two empty texts for a word."""
    if not text.lstrip("-<>")[:1].isdigit():
        return "", ""
    before, point, after = text.partition(".")
    return before, point + after
