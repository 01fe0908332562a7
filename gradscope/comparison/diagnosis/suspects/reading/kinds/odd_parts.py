"""`odd_parts` tells that a value which a layer reads has its parts in another order than the values like it.

Queries, keys and values of a block are exchanged where one block packs them otherwise than the other blocks: the three
agree in that order, and the attention behind them takes each for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gradscope.comparison.diagnosis.likely.layers.kernels.part_orders import Order, order_of_parts, users_of
from gradscope.comparison.layout.recipe_steps import Concatenate
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
        called = [each for each in pairing.matched if each is not match and _is_called_alike(each, match)]
        alike = [each for each in called if _has_features_of(dumps, each, match)]
        if called and not alike and len(match.recipe.keys) == 1 and (own := order_of_parts(match, users)):
            # The others have no such parts, and none of them is in another order.
            name = printable(split_key(match.ref)[1])
            return f"the order of the parts of `{name}`, which is [{', '.join(own)}] of the reference's"
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


def _is_called_alike(one: Match, other: Match) -> bool:
    """Returns whether two values have names that differ in numbers."""
    return _kind(one.ref) == _kind(other.ref) and split_key(one.ref)[0] == split_key(other.ref)[0] == ACTIVATION


def _has_features_of(dumps: Dumps, one: Match, other: Match) -> bool:
    """Returns whether two values have as many features."""
    shapes = [dumps.ref.entry(each.ref).shape for each in (one, other)]
    # The features are along the axis of the parts, as the channels of an image of PyTorch are along its second.
    axes = [step.axis for each in (one, other) for step in each.recipe.steps if isinstance(step, Concatenate)]
    axis = next(iter(axes), -1)
    return len(shapes[0]) == len(shapes[1]) and shapes[0][axis] == shapes[1][axis]


def _kind(name: str) -> str:
    return _NUMBER.sub("", name)


def _order(match: Match, users: dict[str, str]) -> Order:
    parts = order_of_parts(match, users)
    return tuple(map(_kind, parts)) if len(match.recipe.keys) > 1 else parts
