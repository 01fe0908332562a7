"""`with_likely_parts` states what the shapes and names of parameters without a counterpart suggest.

A right port packs what its reference has apart, and its values show that (`pairing.values`). Where they do not, because
they are wrong or of other weights, a name on one side only says little. So the sentence of such a row has the tensors
of the other side that would make it up: parts that are joined along one axis, or two terms of one sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, TENSOR, key_of, printable, split_key

#: The families of parameters, in a file without a manifest as well.
_STORED: Final = (PARAM, TENSOR)

#: The largest number of pairs of tensors that are looked at: a few seconds. Programs that have no name in common have
#: the square of their parameters.
_MOST_PAIRS: Final = 300_000

#: The largest number of parts that are listed by name.
_MOST_PARTS: Final = 8


def with_likely_parts(
    dumps: Dumps, rows: Sequence[ComparisonRow], related: Mapping[str, str]
) -> tuple[ComparisonRow, ...]:
    """Returns the rows of a comparison, those of tensors that only one dump has with such a clause.

    Args:
        dumps: The dumps.
        rows: The rows.
        related: What values are of others that are no counterparts, in words, by their keys.
    """
    alone: dict[str, list[str]] = {"missing": [], "extra": []}
    for row in rows:
        if row.family in _STORED and row.counts and row.status in alone:
            alone[row.status].append(key_of(row.family, row.name))
    found: dict[tuple[str, str], str] = {}
    looked_at = 0
    sides = (("missing", dumps.ref, "extra", dumps.cand), ("extra", dumps.cand, "missing", dumps.ref))
    for status, holder, other_status, other in sides:
        for packed in alone[status]:
            free = [key for key in alone[other_status] if (other_status, key) not in found]
            looked_at += len(free)
            if looked_at > _MOST_PAIRS:
                break
            parts, how = _made_up(holder, packed, other, free)
            if parts:
                of = " and ".join(map(_quoted, parts))
                found[status, packed] = f"has the shape of {of} {how}, and other values"
                found |= {(other_status, part): f"may be a part of {_quoted(packed)}" for part in parts}
    for row in (each for each in rows if each.status in alone):
        key = key_of(row.family, row.name)
        if key in related:
            found[row.status, key] = related[key]
    keys = ((row.status, key_of(row.family, row.name)) for row in rows)
    return tuple(replace(row, likely=found[key]) if key in found else row for key, row in zip(keys, rows, strict=True))


def _made_up(holder: DumpSource, packed: str, other: DumpSource, free: Sequence[str]) -> tuple[list[str], str]:
    """Returns the tensors that may make up another, and how; none where the shapes and names do not decide."""
    shape = holder.entry(packed).shape
    shapes = {key: other.entry(key).shape for key in free}
    terms = _nearest(packed, {name: each for name, each in shapes.items() if each == shape})
    if len(terms) == 2:
        return terms, "added up"
    parts = _nearest(packed, {name: each for name, each in shapes.items() if _may_be_part(each, shape)})
    size = sum(math.prod(shapes[part]) for part in parts)
    joined = 1 < len(parts) <= _MOST_PARTS and size == math.prod(shape)
    return (parts, "joined") if joined else ([], "")


def _nearest(packed: str, names: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns those of some names that share the most words with another."""
    own = _words(packed)
    shared = {name: (own & _words(name)).total() for name in names}
    most = max(shared.values(), default=0)
    return [name for name, count in shared.items() if count == most]


@lru_cache(maxsize=10_000)
def _words(key: str) -> Counter[str]:
    return Counter(tokens_of(split_key(key)[1]))


def _quoted(key: str) -> str:
    return f"`{printable(split_key(key)[1])}`"


@lru_cache(maxsize=10_000)
def _may_be_part(part: tuple[int, ...], packed: tuple[int, ...]) -> bool:
    """Returns whether a tensor may be a part of another, its axes in whichever order."""
    others = Counter(packed) - Counter(part)
    if len(part) == len(packed) - 1:  # one of a stack
        return others.total() == 1 and not Counter(part) - Counter(packed)
    return len(part) == len(packed) and others.total() == 1 and math.prod(part) < math.prod(packed)
