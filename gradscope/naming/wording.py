"""Numbers and counts in words, for sentences."""

from __future__ import annotations

import math


def brief(number: float) -> str:
    """Returns a number with two digits: `2.1e-2`, `1.5`, `0`, `inf`."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if 0.1 <= number < 9.95:
        return f"{number:#.2g}"
    significand, exponent = f"{number:.1e}".split("e")
    return f"{significand}e{int(exponent)}"


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Returns a count with its noun: `1 name`, `2 names`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def percent(share: float) -> str:
    """Returns a fraction as a percentage with two digits: `0.05 %`, `12 %`, `130 %`."""
    number = 100 * share
    if number >= 10:
        return f"{number:.0f} %"
    return f"{number:.2g} %" if number >= 0.001 else f"{brief(number)} %"


def times(factor: float) -> str:
    """Returns a factor with two digits: `0.81x`, `31x`."""
    return f"{factor:.0f}x" if 10 <= factor < math.inf else f"{brief(factor)}x"
