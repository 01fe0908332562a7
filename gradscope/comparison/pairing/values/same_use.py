"""`SameUse` rates pairs of parameters by what uses them, because constants are equal to each other wherever they are.

Biases that are all zero and gains of one have the same values at initialisation. The layer that uses one shows which
it is: its other parameters, what it reads and what it returns are paired with those of the counterpart's layer. Of the
scale of a norm, which is alone in its layer, and whose values differ, the kernels of the layers that read it do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Final

from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of

#: The most tensors around all parameters of one layer together, and the most users that all requests look at: a file
#: may have a layer of a million parameters.
_MOST_AROUND: Final = 1 << 17
_MOST_USERS: Final = 4_000_000

#: The most values and parameters of one layer that are looked at to find the layers next to it.
_MOST_BEYOND: Final = 16


class SameUse:
    """SameUse counts what the layers that use two parameters have in common.

    Of layers with hundreds of parameters and values it knows some, and of thousands of such parameters the first.

    Args:
        dumps: The dumps.
        matches: The pairs that are certain.
    """

    def __init__(self, dumps: Dumps, matches: Iterable[Match]) -> None:
        self._ref, self._cand = _surroundings(dumps.ref), _surroundings(dumps.cand)
        self._ref_beyond, self._cand_beyond = _beyond(dumps.ref), _beyond(dumps.cand)
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        for match in matches:
            self._known[match.ref].update(match.recipe.keys)
        self._left = _MOST_USERS
        self._users: defaultdict[str, list[str]] = defaultdict(list)
        for key, around in self._cand.items():
            for each in around:
                self._users[each].append(key)

    def likely(self, ref: str) -> frozenset[str]:
        """Returns the parameters of the candidate for which `shared` counts anything with a parameter."""
        known = (key for around in self._ref.get(ref, ()) for key in self._known.get(around, ()))
        users = [*islice(chain.from_iterable(self._users.get(key, ()) for key in known), self._left)]
        self._left -= len(users)
        return frozenset(users)

    def shared(self, match: Match) -> int:
        """Returns how many tensors around a parameter are paired with tensors around its counterpart.

        Args:
            match: A pair; of any other family than parameters nothing is counted.
        """
        around, others = self._ref.get(match.ref, frozenset()), self._cand.get(match.cand, frozenset())
        return sum(1 for key in around if not others.isdisjoint(self._known.get(key, ())))

    def beyond(self, match: Match) -> int:
        """Returns how many parameters of the layers next to a parameter's are paired with those of its counterpart's.

        Args:
            match: A pair; of any other family than parameters nothing is counted.
        """
        beyond, others = self._ref_beyond.get(match.ref, frozenset()), self._cand_beyond.get(match.cand, frozenset())
        return sum(1 for key in beyond if not others.isdisjoint(self._known.get(key, ())))


def _beyond(source: DumpSource) -> Mapping[str, frozenset[str]]:
    """Returns the parameters of the innermost layers that read what those which use a parameter return, by its key."""
    layers = _innermost(source)
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for layer in layers:
        for name in layer.inputs[:_MOST_BEYOND]:
            readers[name] += (key_of(PARAM, each) for each in layer.params[:_MOST_BEYOND])
    found: defaultdict[str, set[str]] = defaultdict(set)
    for layer in layers:
        read = {key for name in layer.outputs[:_MOST_BEYOND] for key in readers.get(name, ())[:_MOST_BEYOND]}
        for name in layer.params[:_MOST_BEYOND]:
            found[key_of(PARAM, name)] |= read
    return {key: frozenset(beyond) for key, beyond in found.items()}


def _innermost(source: DumpSource) -> list[Layer]:
    layers = source.manifest.layers
    composites = {layer.parent for layer in layers}
    return [layer for layer in layers if layer.path not in composites]


def _surroundings(source: DumpSource) -> Mapping[str, frozenset[str]]:
    """Returns the parameters, inputs and outputs of the innermost layers that use a parameter, by its key."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for layer in _innermost(source):
        params = dict.fromkeys(key_of(PARAM, name) for name in layer.params)
        read = (key_of(family, name) for name in layer.inputs for family in (ACTIVATION, INPUT))
        returned = (key_of(ACTIVATION, name) for name in layer.outputs)
        most = _MOST_AROUND // max(1, len(params))
        around = [*islice(dict.fromkeys(chain(returned, read, params)), max(1, most))]
        for key in params:
            found[key].update(around)
    return {key: frozenset(around - {key}) for key, around in found.items()}
