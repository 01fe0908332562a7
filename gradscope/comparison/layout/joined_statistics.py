"""`joined_statistics` returns the statistics of several tensors together, as of layers that are stacked or packed.

Only those statistics are joined that a comparison uses, and that are the same for every order of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json

_SUMS: Final = ("zeros", "nan", "inf", "posinf", "neginf", "l1")
_LARGEST: Final = ("max", "amax")


def joined_statistics(parts: Sequence[tuple[Mapping[str, Json], int]]) -> dict[str, Json]:
    """Returns the statistics of all elements of several tensors.

    Args:
        parts: The statistics of each tensor by column name, and the number of its elements.

    Returns:
        Those that all tensors have, and that follow from theirs.
    """
    size = sum(count for _, count in parts)

    def column(name: str) -> list[float]:
        return [as_float(each[name]) for each, _ in parts if name in each]

    def has(*names: str) -> bool:
        return all(name in each for name in names for each, _ in parts)

    joined: dict[str, Json] = {name: sum(column(name)) for name in _SUMS if has(name)}
    joined |= {name: max(column(name)) for name in _LARGEST if has(name)}
    if has("min"):
        joined["min"] = min(column("min"))
    if has("l2") and size:
        joined["l2"] = math.hypot(*column("l2"))
        joined["rms"] = math.hypot(*column("l2")) / math.sqrt(size)
    if has("mean", "std") and size:
        sizes = [count for _, count in parts]
        means = column("mean")
        mean = sum(each * count for each, count in zip(means, sizes, strict=True)) / size
        # The variance is that within the tensors, and that of their means.
        squares = (each * each for each in column("std"))
        within = sum((square + (own - mean) ** 2) * n for square, own, n in zip(squares, means, sizes, strict=True))
        joined |= {"mean": mean, "std": math.sqrt(within / size)}
    return joined
