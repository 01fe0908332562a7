"""`NamedParts` tells the name of a whole layer from that of a first part which is called after its parameters.

Without scopes, what is computed with a parameter has the name of its scope, and the scope of a block has those of many
layers: `block` is the first product in it, `block#2` the second. Where the other program has a scope `block`, its name
is that of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming.paths import without_occurrence


class NamedParts:
    """NamedParts finds the names that one program gives to a layer with parts, and the other to a part of it.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        layers = dumps.ref.manifest.layers, dumps.cand.manifest.layers
        self._wholes = [_wholes(each) for each in layers]
        self._parts = [_parts(each) - wholes for each, wholes in zip(layers, self._wholes, strict=True)]

    def mislead(self, ref: str, cand: str) -> bool:
        """Returns whether one of two names is that of a layer with parts, and the other that of a part.

        Args:
            ref: The name of a value of the reference.
            cand: The name of a value of the candidate.
        """
        (whole, part), others = ([each[side] for each in (self._wholes, self._parts)] for side in (0, 1))
        return (_is_in(whole, ref) and _is_in(others[1], cand)) or (_is_in(part, ref) and _is_in(others[0], cand))


def _is_in(layers: Collection[str], value: str) -> bool:
    """Returns whether a value is what one of some layers returns, or one of several outputs of it."""
    name = without_occurrence(value)
    return name in layers or name.rpartition(".")[0] in layers


def _wholes(layers: Iterable[Layer]) -> frozenset[str]:
    """Returns the paths of layers whose parts have parameters."""
    return frozenset(each.parent for each in layers if each.parent is not None and each.params)


def _parts(layers: Iterable[Layer]) -> frozenset[str]:
    """Returns the paths of layers of which each call has parameters that no other call of it has."""
    calls: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
    for each in layers:
        if each.params:
            calls[without_occurrence(each.path)].append(frozenset(each.params))
    return frozenset(path for path, each in calls.items() if len(each) > 1 and _are_apart(each))


def _are_apart(calls: Iterable[frozenset[str]]) -> bool:
    every = [name for params in calls for name in params]
    return len(every) == len({*every})
