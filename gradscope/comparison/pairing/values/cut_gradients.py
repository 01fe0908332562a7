"""`cut_gradients` pairs the gradients of equal values of which one is cut off: no gradient arrives there.

A value may be in a program twice, and the loss may read one of them alone, so that a gradient which arrives in one
program only says little. Where nothing that is compared of what is computed from it is over its tolerance, it needs no
counterpart. Where something is, the gradient was lost on its way, as behind a `stop_gradient`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, INPUT, gradient_family, key_of, split_key

#: The reason for which a gradient has no tensor where none arrives.
_CUT: Final = "disconnected"


def cut_gradients(dumps: Dumps, pairing: Pairing, accounted: frozenset[str]) -> Iterator[Match]:
    """Yields matches of the gradients of paired values that arrive in one of the programs alone.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        accounted: The keys of gradients that need no counterpart.
    """
    free_ref, free_cand = frozenset(pairing.only_ref), frozenset(pairing.only_cand)
    for match in pairing.matched:
        family, name = split_key(match.ref)
        gradient = gradient_family(family) if family in (ACTIVATION, INPUT) else None
        if gradient is None or any(split_key(key)[0] != family for key in match.recipe.keys):
            continue
        key, others = key_of(gradient, name), [key_of(gradient, split_key(each)[1]) for each in match.recipe.keys]
        if key not in free_ref or not free_cand.issuperset(others):
            continue
        cut = _is_cut(dumps.ref, key)
        arriving = others if cut else [key]
        if all(_is_cut(dumps.cand, each) is not cut for each in others) and accounted.isdisjoint(arriving):
            yield Match(ref=key, recipe=replace(match.recipe, keys=tuple(others)), matched_by=match.matched_by)


def _is_cut(source: DumpSource, key: str) -> bool:
    return source.entry(source.resolve(key)).absent == _CUT
