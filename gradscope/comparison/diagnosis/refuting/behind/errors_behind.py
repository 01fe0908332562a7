"""`ErrorsBehind` finds the largest error among the values that are compared next behind a value of one program.

`InheritedErrors` finds it among those before it, and which error a value has of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gradscope.comparison.diagnosis.growth import FLAGGED
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import NearestKeys, Sources, inverted
from gradscope.naming import is_gradient, split_key

#: The relative error of a loss, and of a gradient, that only rounding makes.
EXACT: Final = 5e-6

#: How many times the error that it inherits a value may have that the layer makes no error in.
_INHERITED: Final = 3


def relative_error(row: ComparisonRow) -> float:
    """Returns the relative error of a pair; zero where that is rounding."""
    if row.needed == 0.0:
        return 0.0
    error = as_float(row.metrics.get("rel_l2", math.inf if row.status == "different" else 0.0))
    return math.inf if math.isnan(error) else error


def loss_error(dumps: Dumps, known: Iterable[Match], rows: Mapping[str, ComparisonRow]) -> float:
    """Returns the largest error of the loss and of the gradients, by which what only the loss reads is compared.

    Where the losses agree exactly, and so does a gradient, what differs is a derivative: no other gradient counts then.

    Args:
        dumps: The dumps.
        known: Pairs that are no guesses.
        rows: Their rows, by the reference's keys.
    """
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    loss = abs(one - other) / max(abs(one), 1e-30)
    gradients = {each.ref: rows[each.ref] for each in known if is_gradient(split_key(each.ref)[0])}
    exact = (key for key, row in gradients.items() if as_float(row.metrics.get("rel_l2", math.inf)) <= EXACT)
    derivative = loss <= EXACT and any(dumps.ref.entry(dumps.ref.resolve(key)).stats.get("rms") for key in exact)
    return loss if derivative else max(loss, *map(relative_error, gradients.values()), 0.0)


class ErrorsBehind:
    """`ErrorsBehind` finds the largest error next behind a value, through what is computed from it and not compared.

    Each value is visited once, however many values are requested, also where the graph has cycles, as damaged dumps do.

    Args:
        sources: The keys that each key is computed from.
        errors: The relative errors of the values that are compared, by key.
        unread: The error that stands for what reads a value that no layer reads: the loss.
    """

    # Values that read each other have one result, by the algorithm of Tarjan, "Depth-First Search and Linear Graph
    # Algorithms", SIAM Journal on Computing 1 (1972).

    def __init__(self, sources: Sources, errors: Mapping[str, float], unread: float) -> None:
        self._sources = sources
        self._errors = dict(errors)
        self._unread = unread
        self._known: dict[str, float] = {}
        self._readers = inverted(sources)

    def largest(self, key: str) -> float:
        """Returns the largest error of what is compared next behind a value; zero where nothing is."""
        if key not in self._known:
            self._find(key)
        return self._known[key]

    def add(self, key: str, error: float) -> None:
        """Compares one more value, so that what it is computed from sees its error and nothing behind it."""
        self._errors[key] = error
        waiting = [key]
        while waiting:
            # Where a result is not known, none is that needed it.
            found = [each for each in self._sources.get(waiting.pop(), ()) if self._known.pop(each, None) is not None]
            waiting += (each for each in found if each not in self._errors)

    def _find(self, start: str) -> None:
        order, lowest, path = {start: 0}, {start: 0}, [start]
        entered: list[tuple[str, Iterator[str]]] = [(start, self._through(start))]
        while entered:
            key, following = entered[-1]
            reader = next(following, None)
            if reader is None:
                entered.pop()
                if entered:
                    before = entered[-1][0]
                    lowest[before] = min(lowest[before], lowest[key])
                if lowest[key] == order[key]:
                    cycle = [path.pop()]
                    while cycle[-1] != key:
                        cycle.append(path.pop())
                    self._settle(cycle)
            elif reader in order:
                if reader not in self._known:
                    lowest[key] = min(lowest[key], order[reader])
            elif reader not in self._known:
                order[reader] = lowest[reader] = len(order)
                path.append(reader)
                entered.append((reader, self._through(reader)))

    def _through(self, key: str) -> Iterator[str]:
        """Yields what reads a value and is not compared."""
        return (each for each in self._readers.get(key, ()) if each not in self._errors)

    def _settle(self, cycle: Sequence[str]) -> None:
        """Stores the result of values that read each other, or of one by itself."""
        found = 0.0
        for key in cycle:
            readers = self._readers.get(key, ())
            own = (self._errors[each] if each in self._errors else self._known.get(each, 0.0) for each in readers)
            found = max(found, *own, 0.0 if readers else self._unread)
        self._known.update(dict.fromkeys(cycle, found))


class InheritedErrors:
    """`InheritedErrors` knows which errors values have of their own, by those of what they are computed from.

    Args:
        source: The reference.
        sources: What its values are computed from.
        rows: The rows of the pairs, by the reference's keys.

    Attributes:
        known: The relative errors of the pairs that are not dropped, by the keys of their owners.
    """

    def __init__(self, source: DumpSource, sources: Sources, rows: Mapping[str, ComparisonRow]) -> None:
        self.known = {source.resolve(key): relative_error(row) for key, row in rows.items()}
        self._source, self._rows, self._before = source, rows, NearestKeys(sources, self.known)

    def tolerance(self, key: str) -> float | None:
        """Returns the error that a value has which only inherits one; None where it has no error of its own.

        Args:
            key: The reference's key of the value.
        """
        row, owner = self._rows[key], self._source.resolve(key)
        inherited = max((self.known[each] for each in self._before.behind(owner)), default=0.0)
        if row.tolerance is None or relative_error(row) <= FLAGGED * inherited:
            return None
        return row.tolerance if inherited <= row.tolerance else max(row.tolerance, _INHERITED * inherited)

    def replace(self, key: str, error: float) -> None:
        """Replaces the error of a value by that of the step behind which its counterpart is."""
        self.known[self._source.resolve(key)] = error

    def drop(self, key: str) -> None:
        """Forgets the error of a value that is no pair: those behind it inherit what it is computed from has."""
        self.known.pop(self._source.resolve(key), None)
