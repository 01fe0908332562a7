"""`traceless_gradients` finds pairs of gradients that differ although nothing that is computed from them does.

Where a function has no derivative, programs may take different ones: of two equal largest values in a window, a maximum
may hand its gradient to the first, or half of it to each. Behind a rectifier both are zero, and their gradients vanish
before anything reads them. The gradients of such a pair are different, and both programs are right. Of a pair that has
one name, that is only believed where equal values have the same gradient together.

A gradient that differs may also be added to one that is much larger, as that of a branch of small weight is. What it is
added to agrees within its tolerance then, but not to rounding: its error is larger than those that it inherits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from gradscope.comparison.diagnosis.refuting.apart.moved_gradients import is_moved
from gradscope.comparison.diagnosis.refuting.behind.errors_behind import EXACT, relative_error
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.operation_names import OperationNames
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, is_gradient, key_of, split_key

#: The passes that pair what the user says is one tensor.
_STATED: Final = ("map", "name")

#: How many times the errors that it inherits the error of a gradient is that only rounding makes.
_GROWTH: Final = 10


def traceless_gradients(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> list[Match]:
    """Returns the pairs of gradients of equal values that differ, and of which nothing that is computed next does.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    operations = OperationNames(dumps)
    differing = [
        match
        for match in pairing.matched
        if rows[match.ref].status == "different"
        and split_key(match.ref)[0] == ACTIVATION_GRAD
        and (value := rows.get(key_of(ACTIVATION, split_key(match.ref)[1]))) is not None
        and value.status == "same"
    ]
    if not differing:
        return []
    stated = {each for each in differing if each.matched_by in _STATED and not operations.name(each)}
    moved = cache(lambda match: is_moved(dumps, match, rows[match.ref]))
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
            and (match not in stated or moved(match))
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
        sources = sources_of(source.manifest.layers)
        self._sources = NearestKeys(sources, self._rows)
        self._readers = NearestKeys(inverted(sources), self._rows)

    def agrees_behind(self, key: str) -> bool:
        """Returns whether gradients are computed from a gradient that are compared, and all agree but for rounding.

        One that is zero but for rounding agrees whatever it is computed from.
        """
        owner = self._source.resolve(key)
        behind = [self._rows[each] for each in self._readers.behind(owner)]
        before = [self._rows[each] for each in self._sources.behind(owner)]
        inherited = max((relative_error(row) for row in before if row.status == "same"), default=0.0)
        limit = max(EXACT, _GROWTH * inherited)
        agree = all(row.status == "same" and relative_error(row) <= limit for row in behind)
        return agree and any(row.needed or row.metrics.get("rel_l2") == 0 for row in behind)

    def drop(self, key: str) -> None:
        """Compares a gradient no more, so that what is computed from it is seen behind it."""
        self._rows.pop(self._source.resolve(key), None)
