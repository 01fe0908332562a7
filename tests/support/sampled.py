"""`sampled` parametrizes a test over cases of one kind, of which a quarter is run always and all before a release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: Of so many cases one is run always, the first among them.
_EVERY = 4


def sampled(names: str | Sequence[str], cases: Iterable[Any], **options: Any) -> pytest.MarkDecorator:
    """Returns what `pytest.mark.parametrize` does, with the mark `slow` on three of four cases.

    Args:
        names: The names of the arguments, as `parametrize` takes them.
        cases: The values, likewise.
        options: What else it takes.
    """
    listed = names.split(",") if isinstance(names, str) else names
    params = [
        each if hasattr(each, "marks") else pytest.param(*(each if len(listed) > 1 else (each,))) for each in cases
    ]
    slow = (
        pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.slow]) if number % _EVERY else each
        for number, each in enumerate(params)
    )
    return pytest.mark.parametrize(names, list(slow), **options)
