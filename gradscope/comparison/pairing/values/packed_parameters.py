"""`packed_parameters` returns which parameters of one dump are packed in which of the other, by a pairing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradscope.comparison.layout.recipes import Split, Unstack
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
        if split_key(match.ref)[0] != PARAM:
            continue
        if len(recipe.keys) > 1:
            in_ref[match.ref] = recipe.keys
        elif recipe.steps and isinstance(recipe.steps[0], Split | Unstack):
            in_cand[match.cand][recipe.part] = match.ref
    packed = {key: parts for key, parts in in_cand.items() if sorted(parts) == list(range(len(parts))) != [0]}
    return {key: tuple(parts[number] for number in range(len(parts))) for key, parts in packed.items()}, in_ref
