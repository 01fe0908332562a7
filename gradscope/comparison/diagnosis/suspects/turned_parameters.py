"""`turned_parameters` returns the parameters that are read in another layout than the others of a port.

A port keeps the kernels of a kind in one layout. One that has the shape of its counterpart, and its elements in another
order than most others, may have been transposed or flipped by mistake, whatever it is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import PARAM, split_key


def turned_parameters(dumps: Dumps, matches: Sequence[Match]) -> frozenset[str]:
    """Returns the names of parameters that have one shape in both programs, and a layout that few others have.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """
    params = [match for match in matches if split_key(match.ref)[0] == PARAM]
    ranks = {match.ref: len(dumps.ref.entry(match.ref).shape) for match in params}
    of_rank = Counter(ranks.values())
    alike = Counter((ranks[match.ref], match.recipe.description()) for match in params)
    return frozenset(
        split_key(match.ref)[1]
        for match in params
        if is_turned(dumps, match)
        and 2 * alike[ranks[match.ref], match.recipe.description()] < of_rank[ranks[match.ref]]
    )


def is_turned(dumps: Dumps, match: Match) -> bool:
    """Returns whether a pair has one shape, and elements in another order.

    Args:
        dumps: The dumps.
        match: The pair.
    """
    if len(match.recipe.keys) != 1 or not match.recipe.steps:
        return False
    return dumps.ref.entry(match.ref).shape == dumps.cand.entry(match.cand).shape
