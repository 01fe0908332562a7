"""The part of a program that was asked for, in words."""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.dump.record import Json
from gradscope.naming import printable


def fragment_sentence(fragment: Mapping[str, Json]) -> str:
    """What a fetch needs.

    Args:
        fragment: `needed` and `total`, numbers of operations, and the names of the `inputs`.
    """
    inputs = fragment["inputs"]
    names = ", ".join(printable(str(name)) for name in inputs) if isinstance(inputs, list) else ""
    return f"{fragment['needed']:,} of {fragment['total']:,} operations needed; inputs needed: {names or 'none'}"
