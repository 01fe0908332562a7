"""`packed_parameters` returns which parameters of one dump are packed in which of the other, by a pairing.

`shuffled_parameters` returns those whose parts are cut into blocks that are packed in another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gradscope.comparison.layout.recipe_steps import Concatenate, Reorder, Split, Unstack
from gradscope.comparison.pairing.matching import Match
from gradscope.naming import PARAM, split_key


def packed_parameters(matches: Iterable[Match]) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Returns the parameters that are packed in those of the candidate, and in those of the reference, in order.

    Args:
        matches: The pairs of the dumps.
    """
    in_cand: defaultdict[str, dict[int, str]] = defaultdict(dict)
    in_ref: dict[str, tuple[str, ...]] = {}
    for match in matches:
        recipe = match.recipe
        if split_key(match.ref)[0] != PARAM or any(isinstance(step, Reorder) for step in recipe.steps):
            continue
        if len(recipe.keys) > 1:
            in_ref |= {} if _is_grid(match) else {match.ref: recipe.keys}
        elif recipe.steps and isinstance(recipe.steps[0], Split | Unstack) and not _is_grid(match):
            in_cand[match.cand][recipe.part] = match.ref
    packed = {key: parts for key, parts in in_cand.items() if sorted(parts) == list(range(len(parts))) != [0]}
    return {key: tuple(parts[number] for number in range(len(parts))) for key, parts in packed.items()}, in_ref


def _is_grid(match: Match) -> bool:
    """Returns whether parts are joined along two axes: a layer of such a parameter has the sums of theirs."""
    return len({step.axis for step in match.recipe.steps if isinstance(step, Split | Concatenate)}) > 1


class Shuffled(NamedTuple):
    """Shuffled has a parameter that is packed, its parts in the other dump, and the order of their blocks in it.

    Attributes:
        of_ref: Whether the reference has the packed parameter.
        packed: Its key.
        parts: The keys of its parts.
        blocks: For each block of the packed parameter, its place among those of the joined parts.
    """

    of_ref: bool
    packed: str
    parts: tuple[str, ...]
    blocks: tuple[int, ...]


def shuffled_parameters(matches: Iterable[Match]) -> Iterator[Shuffled]:
    """Yields the parameters whose parts are cut into blocks that are packed in another order.

    Args:
        matches: The pairs of the dumps.
    """
    in_cand: defaultdict[tuple[str, tuple[int, ...]], dict[int, str]] = defaultdict(dict)
    for match in (match for match in matches if split_key(match.ref)[0] == PARAM):
        steps = match.recipe.steps
        orders = [step.order for step in steps if isinstance(step, Reorder)]
        if len({step.axis for step in steps if isinstance(step, Split | Concatenate)}) > 1:
            continue  # the parts are joined along another axis than that of the blocks
        if len(orders) == 1 and len(match.recipe.keys) > 1:
            yield Shuffled(True, match.ref, match.recipe.keys, orders[0])
        elif len(orders) == 1:
            in_cand[match.cand, orders[0]][match.recipe.part] = match.ref
    for (key, order), parts in in_cand.items():
        if sorted(parts) == list(range(len(parts))) != [0]:
            blocks = tuple(sorted(range(len(order)), key=order.__getitem__))
            yield Shuffled(False, key, tuple(parts[number] for number in range(len(parts))), blocks)
