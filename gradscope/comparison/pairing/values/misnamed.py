"""`without_misnamed` drops pairs of values that are called alike and have their values under another pair's name.

The outputs of a PyTorch module are numbered (`lstm.0`), and so are the layers of a port (`lstm_0`). Such a name is only
misleading where the values of both pairs differ: where one of them agrees, the other may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.equal_classes import equal_classes
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key


def without_misnamed(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns the matches by name without those of activations whose values are under another of these names.

    Args:
        dumps: The dumps.
        matches: The matches.
    """
    equality = Equality(dumps)
    wrong = [match for match in matches if match.recipe.plain and _differs(dumps, match, equality)]
    if len(wrong) < 2:
        return list(matches)
    claimed = Pairing(only_ref=tuple(each.ref for each in wrong), only_cand=tuple(each.cand for each in wrong))
    classes = list(equal_classes(dumps, claimed, equality))
    elsewhere = {key for each in classes for key in (*each.refs, *each.cands)}
    found = {each.ref for each in wrong if each.ref in elsewhere or each.cand in elsewhere}
    found |= {key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in found}
    return [match for match in matches if match.ref not in found]


def _differs(dumps: Dumps, match: Match, equality: Equality) -> bool:
    """Returns whether the sizes or the statistics of two activations show that they differ in every layout."""
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if one.family != ACTIVATION or not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)):
        return False
    limit = equality.tolerance(match.ref, match.cand)
    if limit is None or prod(one.shape) != prod(other.shape):
        return True
    bound = least_rel_l2(equality.ref_stats(match.ref), equality.cand_stats(match.cand))
    return bound is not None and bound.rel_l2 > limit
