"""`traceless_gradients` finds pairs of gradients that differ although nothing that is computed from them does.

Where a function has no derivative, programs may take different ones: of two equal largest values in a window, a maximum
may hand its gradient to the first, or half of it to each. Behind a rectifier both are zero, and their gradients vanish
before anything reads them. The gradients of such a pair are different, and both programs are right.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import inverted, nearest, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, is_gradient, key_of, split_key

#: The passes that pair what the user says is one tensor.
_STATED = ("map", "name")


def traceless_gradients(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> list[Match]:
    """Returns the pairs of gradients of equal values that differ, and of which nothing that is computed next does.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [
        match
        for match in pairing.matched
        if match.matched_by not in _STATED
        and rows[match.ref].status == "different"
        and split_key(match.ref)[0] == ACTIVATION_GRAD
        and (value := rows.get(key_of(ACTIVATION, split_key(match.ref)[1]))) is not None
        and value.status == "same"
    ]
    if not differing:
        return []
    gradients = [match for match in pairing.matched if rows[match.ref].compared and is_gradient(rows[match.ref].family)]
    ref = _Program(dumps.ref, {dumps.ref.resolve(each.ref): rows[each.ref] for each in gradients})
    cand = _Program(
        dumps.cand, {dumps.cand.resolve(key): rows[each.ref] for each in gradients for key in each.recipe.keys}
    )
    found: list[Match] = []
    fresh = differing
    while fresh:  # behind what is found, others may be
        fresh = [
            match
            for match in differing
            if match not in found
            and ref.agrees_behind(match.ref)
            and all(cand.agrees_behind(key) for key in match.recipe.keys)
        ]
        found += fresh
        for match in fresh:
            ref.drop(match.ref)
            for key in match.recipe.keys:
                cand.drop(key)
    return found


class _Program:
    """_Program tells what is computed from a gradient of one dump, by the rows of the gradients that are compared."""

    def __init__(self, source: DumpSource, rows: Mapping[str, ComparisonRow]) -> None:
        self._source = source
        self._rows = dict(rows)
        self._readers = inverted(sources_of(source.manifest.layers))

    def agrees_behind(self, key: str) -> bool:
        """Returns whether gradients are computed from a gradient that are compared, and all of them agree."""
        behind = list(nearest(self._readers, self._source.resolve(key), self._rows))
        return bool(behind) and all(self._rows[each].status == "same" for each in behind)

    def drop(self, key: str) -> None:
        """Compares a gradient no more, so that what is computed from it is seen behind it."""
        self._rows.pop(self._source.resolve(key), None)
