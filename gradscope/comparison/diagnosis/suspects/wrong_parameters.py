"""`wrong_parameters` returns the parameters that differ, or that the other program does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradscope.comparison.diagnosis.refuting.lost_parameters import (
    lost_parameters,
    summed_parameters,
    unused_terms,
)
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.naming import PARAM, key_of, split_key


def wrong_parameters(dumps: Dumps, pairing: Pairing, rows: Sequence[ComparisonRow]) -> frozenset[str]:
    """Returns the names of parameters that differ, or that the other program does not use.

    Of a parameter that the candidate has in parts, those parts are wrong that differ.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: All rows.
    """
    params = [row for row in rows if row.family == PARAM]
    accounted = {key_of(row.family, row.name) for row in params if row.status != "different" and not row.counts}
    lost = lost_parameters(dumps, pairing, summed_parameters(dumps, pairing))
    matches, reverse = {each.ref: each for each in pairing.matched}, ReversePairing(dumps, pairing.matched)
    differing: set[str] = set()
    for row in (row for row in params if row.status == "different"):
        key = key_of(row.family, row.name)
        parts = list(_differing_parts(dumps, reverse, matches[key], row)) if key in matches else []
        differing.update([key, *parts] if parts else keys_of(row))
    wrong = ((lost | differing) - accounted) | unused_terms(dumps, pairing)
    return frozenset(split_key(key)[1] for key in wrong)


def keys_of(row: ComparisonRow) -> list[str]:
    """Returns the keys of a row in both programs."""
    names = [row.name, *(row.counterpart.split(", ") if row.counterpart else ())]
    return [key_of(row.family, name) for name in names]


def _differing_parts(dumps: Dumps, reverse: ReversePairing, match: Match, row: ComparisonRow) -> Iterator[str]:
    """Yields those of the candidate's tensors of which a parameter is made that differ from their part of it."""
    for key in match.recipe.keys:
        expected = reverse.array(key) if dumps.cand.has_tensor(key) else None
        if expected is not None:
            found = dumps.cand.array(key).astype(np.float64)
            if np.linalg.norm(found - expected) > (row.tolerance or 0.0) * np.linalg.norm(expected):
                yield key
