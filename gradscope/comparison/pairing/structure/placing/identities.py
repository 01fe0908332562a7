"""`without_identities` pairs the values that layers make, and not those of layers that return what they read.

Of a dropout in evaluation and the layer before it, both have the value, and only that layer can have made it wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import split_key
from gradscope.naming.paths import is_inside


def without_identities(dumps: Dumps, pairing: Pairing, matches: Sequence[Match]) -> list[Match]:
    """Returns plain matches of activations, those of identities replaced by matches of what these read.

    What is read has no counterpart itself, or else the identities of both programs are counterparts.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far.
        matches: The matches that their places suggest.
    """
    of_ref, of_cand = sources_of(dumps.ref.manifest.layers), sources_of(dumps.cand.manifest.layers)
    free_ref = {*pairing.only_ref} - {match.ref for match in matches}
    free_cand = {*pairing.only_cand} - {match.cand for match in matches}
    return [
        Match.of(
            _maker(dumps.ref, of_ref, match.ref, free_ref),
            _maker(dumps.cand, of_cand, match.cand, free_cand),
            match.matched_by,
        )
        for match in matches
    ]


def _maker(source: DumpSource, sources: Mapping[str, Collection[str]], key: str, free: Collection[str]) -> str:
    """Returns the key of the first of some equal values, each of which is computed from the one before it alone."""
    known = frozenset(source.keys())
    while True:
        read = [each for each in sources.get(key, ()) if each in known]
        if len(read) != 1 or read[0] not in free or _is_part(read[0], key) or not _are_equal(source, key, read[0]):
            return key
        (key,) = read


def _is_part(key: str, whole: str) -> bool:
    """Returns whether a value is made inside of the layer that returns another."""
    return is_inside(split_key(key)[1], (split_key(whole)[1],))


def _are_equal(source: DumpSource, key: str, other: str) -> bool:
    entries = source.entry(key), source.entry(other)
    alike = entries[0].shape == entries[1].shape and entries[0].dtype == entries[1].dtype
    if not alike or not (source.has_tensor(key) and source.has_tensor(other)):
        return False
    return np.array_equal(source.array(key), source.array(other))
