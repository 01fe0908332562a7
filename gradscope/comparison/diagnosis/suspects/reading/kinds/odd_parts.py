"""`odd_parts` tells that a value which a layer reads has its parts in another order than the values like it.

Queries, keys and values of a block are exchanged where one block packs them otherwise than the other blocks: the three
agree in that order, and the attention behind them takes each for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gradscope.comparison.diagnosis.likely.layers.kernels.part_orders import Order, order_of_parts, users_of
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.naming import ACTIVATION, printable, split_key

#: What differs between the names of layers of a kind.
_NUMBER: Final = re.compile(r"\d+")


def odd_parts(dumps: Dumps, pairing: Pairing, read: Sequence[str]) -> str:
    """Returns which value has its parts in another order than those like it, in words; "" for none.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        read: The keys of the values in the reference that may.
    """
    users = users_of(dumps.cand.manifest.layers)
    for match in (each for each in pairing.matched if each.ref in read):
        alike = [each for each in pairing.matched if each is not match and _is_alike(dumps, each, match)]
        own, others = _order(match, users), {_order(each, users) for each in alike}
        if len(others) != 1 or own in others:
            continue
        (usual,) = others
        count = max(len(own), len(usual))
        own, usual = (each or tuple(map(str, range(count))) for each in (own, usual))
        if sorted(own) == sorted(usual):
            names = [f"`{printable(split_key(each.ref)[1])}`" for each in (match, alike[0])]
            return f"the order of the parts of {names[0]}, which is {[*map(usual.index, own)]} of that of {names[1]}"
    return ""


def _is_alike(dumps: Dumps, one: Match, other: Match) -> bool:
    """Returns whether two values have names that differ in numbers, and as many features."""
    if any(split_key(each.ref)[0] != ACTIVATION for each in (one, other)) or _kind(one.ref) != _kind(other.ref):
        return False
    return dumps.ref.entry(one.ref).shape[-1:] == dumps.ref.entry(other.ref).shape[-1:]


def _kind(name: str) -> str:
    return _NUMBER.sub("", name)


def _order(match: Match, users: dict[str, str]) -> Order:
    parts = order_of_parts(match, users)
    return tuple(map(_kind, parts)) if len(match.recipe.keys) > 1 else parts
