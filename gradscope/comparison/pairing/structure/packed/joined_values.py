"""`by_joined_values` matches a value of one program with the two of the other that are joined in it.

A bidirectional layer of PyTorch returns both directions as one value, where other programs have a loop for each and
join what those return outside of all layers. The two are looked for among those of the right size whose squares add up
to those of the value; the values decide.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.inference.equal_parts import SAME
from gradscope.comparison.pairing.inference.packed_parts import PackedParts, packed_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, split_key

#: The fewest elements of a part, of which the values say which it is.
_FEWEST: Final = 16

#: The most pairs of values that are read to find the two that are joined in one.
_MOST_PAIRS: Final = 16


def by_joined_values(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations that are two of the other dump, joined along an axis."""
    if not dumps.ref.manifest.layers or not dumps.cand.manifest.layers:
        return
    ref, cand = _squares(dumps.ref, unmatched.only_ref), _squares(dumps.cand, unmatched.only_cand)
    for of_ref, holder, wholes, other, singles in (
        (True, dumps.ref, ref, dumps.cand, cand),
        (False, dumps.cand, cand, dumps.ref, ref),
    ):
        for packed in _found(holder, wholes, other, singles, of_ref=of_ref):
            for key in packed.parts:
                del singles[key]
            del wholes[packed.key]
            yield from packed.matches(dumps, of_ref=of_ref)


def _squares(source: DumpSource, keys: Iterable[str]) -> dict[str, float]:
    """Returns the sum of the squares of each activation that is stored."""
    entries = ((key, source.entry(key)) for key in keys if split_key(key)[0] == ACTIVATION)
    return {
        key: as_float(entry.stats.get("rms", math.nan)) ** 2 * math.prod(entry.shape)
        for key, entry in entries
        if entry.alias_of is None and source.has_tensor(key) and dtype_class(entry.dtype) == "float"
    }


def _found(
    holder: DumpSource, wholes: Mapping[str, float], other: DumpSource, singles: Mapping[str, float], *, of_ref: bool
) -> Iterator[PackedParts]:
    of_size: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    for key, square in singles.items():
        if square > 0:
            of_size[math.prod(other.entry(key).shape)].append((square, key))
    for each in of_size.values():
        each.sort()
    for key, square in list(wholes.items()):
        size = math.prod(holder.entry(key).shape)
        possible = of_size.get(size // 2, []) if size % 2 == 0 and size >= 2 * _FEWEST else []
        for one, two in islice(_pairs([each for each in possible if each[1] in singles], square), _MOST_PAIRS):
            arrays = {one: other.array(one), two: other.array(two)}

            def both(_: list[Array], arrays: Mapping[str, Array] = arrays) -> Mapping[str, Array]:
                return arrays

            packed = packed_parts(holder, key, 2, both, of_ref=of_ref)
            if packed is not None:
                yield packed
                break


def _pairs(squares: list[tuple[float, str]], total: float) -> Iterator[tuple[str, str]]:
    """Yields the pairs of values whose squares add up to a total but for rounding."""
    for place, (square, key) in enumerate(squares):
        rest = total - square
        start = bisect_left(squares, (rest - 2 * SAME * total, ""))
        end = bisect_right(squares, (rest + 2 * SAME * total, "\uffff"))
        yield from ((key, squares[each][1]) for each in range(max(start, place + 1), end))
