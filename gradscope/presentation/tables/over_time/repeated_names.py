"""Names that differ in numbers only, and make up complete ranges, have one name in common: `block[0..11]/attn`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from gradscope.naming.numbering import NUMBER

#: The iterations of a loop, and any number in a name.
ITERATIONS: Final = re.compile(rf"(?<=\[){NUMBER}(?=\])")
NUMBERS: Final = re.compile(NUMBER)


def repeated(names: Sequence[str], numbers: re.Pattern[str]) -> Iterator[tuple[str, list[int]]]:
    """Yields the groups of names that repeat, in the order of their first names.

    Args:
        names: The names, each once.
        numbers: What may differ between the names of a group.

    Yields:
        The common name of a group, the name itself of one alone, and the places of its names.
    """
    templates: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        templates.setdefault(numbers.sub("0", name), []).append(at)
    found = [group for same in templates.values() for group in _complete(same, names, numbers)]
    for group in sorted(found, key=lambda each: each[0]):
        yield _common([names[at] for at in group], numbers), group


def _complete(group: list[int], names: Sequence[str], numbers: re.Pattern[str]) -> Iterator[list[int]]:
    """Yields the parts of a group whose numbers make up all combinations of their ranges."""
    values = {at: tuple(map(int, numbers.findall(names[at]))) for at in group}
    columns = list(zip(*values.values(), strict=True))
    # The ranges come first: any numbers of a file from anywhere may have one hash, but not those of complete ranges.
    if math.prod(max(each) - min(each) + 1 for each in columns) == len(group) == len(set(values.values())):
        yield group
        return
    varying = next((place for place, each in enumerate(columns) if len(set(each)) > 1), None)
    if varying is None:  # 1 and 01
        yield from ([at] for at in group)
        return
    parts: dict[int, list[int]] = {}
    for at in group:
        parts.setdefault(values[at][varying], []).append(at)
    for part in parts.values():
        yield from _complete(part, names, numbers)


def _common(names: Sequence[str], numbers: re.Pattern[str]) -> str:
    columns = iter(list(zip(*(map(int, numbers.findall(name)) for name in names), strict=True)))

    def spelt(match: re.Match[str]) -> str:
        low, high = min(values := next(columns)), max(values)
        if low == high:
            return match[0]
        bracketed = match.string[: match.start()].endswith("[") and match.string[match.end() :].startswith("]")
        return f"{low}..{high}" if bracketed else f"[{low}..{high}]"

    return numbers.sub(spelt, names[0])
