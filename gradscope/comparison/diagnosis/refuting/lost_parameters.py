"""`lost_parameters` returns the parameters that one program alone uses, `unused_terms` those that it adds to others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.equality import absent_keys
from gradscope.comparison.pairing.values.sums import added
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import PARAM, PARAM_GRAD, is_gradient, key_of, split_key


def summed_parameters(dumps: Dumps, pairing: Pairing) -> frozenset[str]:
    """Returns the parameters that add up to others of the other program, and those, where the programs use all."""
    alone = [key for key in (*pairing.only_ref, *pairing.only_cand) if split_key(key)[0] == PARAM]
    if not alone:
        return frozenset()
    used = {id(source): _used(source) for source in (dumps.ref, dumps.cand)}
    found = added(dumps, pairing)
    all_used = (
        each
        for each in found
        if used[id(each.holder)].issuperset(each.parts) and used[id(each.other)].issuperset(each.pair)
    )
    return frozenset(key for each in all_used for key in (*each.parts, *each.pair))


def unused_terms(dumps: Dumps, pairing: Pairing) -> frozenset[str]:
    """Returns the terms of sums that one of the programs leaves out, and what they are in the other program."""
    used_ref, used_cand = _used(dumps.ref), _used(dumps.cand)
    found: set[str] = set()
    for each in added(dumps, pairing):
        here, there = (used_ref, used_cand) if each.holder is dumps.ref else (used_cand, used_ref)
        for place, term in enumerate(each.pair):
            parts = np.split(each.values(place), len(each.blocks))
            own = [block[min(place, len(block) - 1)].key for block in each.blocks]
            # A block of zeros adds nothing, whether it is used or not.
            apart = {key for key, part in zip(own, parts, strict=True) if np.any(part)}
            if term not in there or not here.issuperset(apart):
                found |= {term, *apart}
    return frozenset(found)


def lost_parameters(dumps: Dumps, pairing: Pairing, summed: Collection[str]) -> frozenset[str]:
    """Returns the parameters of either program that the other does not use."""
    used_ref, used_cand = _used(dumps.ref), _used(dumps.cand)
    found: set[str] = set()
    for match in (each for each in pairing.matched if split_key(each.ref)[0] == PARAM):
        used = (
            dumps.ref.resolve(match.ref) in used_ref,
            any(dumps.cand.resolve(key) in used_cand for key in match.recipe.keys),
        )
        if used[0] is not used[1] and (used[0] or not _is_unread_part(dumps, match)):
            found |= {match.ref, *match.recipe.keys}
    alone = (key for key in (*pairing.only_ref, *pairing.only_cand) if split_key(key)[0] == PARAM)
    return frozenset(found.union(key for key in alone if key not in summed))


def _is_unread_part(dumps: Dumps, match: Match) -> bool:
    """Returns whether a parameter is a part of one of the candidate that nothing reads there: no gradient arrives.

    Its layer computes both parts, as one for a residual and a skip, of which the last residual is not read.
    """
    recipe = replace(match.recipe, keys=tuple(key_of(PARAM_GRAD, split_key(key)[1]) for key in match.recipe.keys))
    known = frozenset(dumps.cand.keys())
    stored = all(key in known and dumps.cand.has_tensor(key) for key in recipe.keys)
    return not recipe.as_stored and stored and not np.any(recipe.array(dumps.cand))


def _used(source: DumpSource) -> frozenset[str]:
    """Returns the parameters that have a gradient, and those behind a `stop_gradient`, from which layers compute."""
    unused = absent_keys(source)
    params = filter(lambda key: split_key(key)[0] == PARAM, source.keys())
    trained = {source.resolve(key) for key in params if key_of(PARAM_GRAD, split_key(key)[1]) not in unused}
    return frozenset(trained.union(*forward_sources(source).values()))


def forward_sources(source: DumpSource) -> dict[str, Sequence[str]]:
    """Returns what the outputs of layers are computed from, without gradients, by the keys of owners."""
    return {key: made_of for key, made_of in owner_sources(source).items() if not is_gradient(split_key(key)[0])}


def owner_sources(source: DumpSource) -> dict[str, Sequence[str]]:
    """Returns what values and gradients are computed from, by the keys of owners.

    A module of PyTorch has an output of its own name, which nothing reads: that of its last part is read.
    """
    known, sources = frozenset(source.keys()), sources_of(source.manifest.layers)

    def owner(key: str) -> str:
        return source.resolve(key) if key in known else key

    return {
        key: [*dict.fromkeys(each for each in map(owner, made_of) if each != key)]
        for key, made_of in sources.items()
        if owner(key) == key or owner(key) not in sources
    }
