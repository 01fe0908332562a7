"""The pass of execution order: the n-th of one operation and shape on one side is the n-th of them on the other.

Only where both sides have left over the same number of them; with one more on either side nobody could tell which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from gradscope.compare.pairing import Dumps, Match, Pairing
from gradscope.dump.manifest import Entry
from gradscope.dump.source import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD

#: Parameters and inputs are not executed, and a foreign file has an order but no operations.
_EXECUTED: Final = (ACTIVATION, ACTIVATION_GRAD)

#: Family, operation, shape and dtype.
_Kind: TypeAlias = tuple[str, str, tuple[int, ...], str]


def by_order(dumps: Dumps, left: Pairing) -> Iterator[Match]:
    """The pass of execution order."""
    ref, cand = _by_kind(dumps.ref, left.only_ref), _by_kind(dumps.cand, left.only_cand)
    for kind, keys in ref.items():
        others = cand.get(kind, [])
        if len(keys) == len(others):
            yield from (Match.of(one, other, "order") for one, other in zip(keys, others, strict=True))


def _by_kind(source: DumpSource, keys: Iterable[str]) -> dict[_Kind, list[str]]:
    found: defaultdict[_Kind, list[tuple[int, str]]] = defaultdict(list)
    for key in keys:
        if (kind := _kind(source.entry(key))) is not None:
            found[kind].append((source.entry(key).site.index, key))
    return {kind: [key for _, key in sorted(each, key=lambda placed: placed[0])] for kind, each in found.items()}


def _kind(entry: Entry) -> _Kind | None:
    operation = entry.site.primitive
    if entry.family not in _EXECUTED or operation is None or entry.alias_of or entry.absent:
        return None
    return entry.family, operation, entry.shape, entry.dtype
