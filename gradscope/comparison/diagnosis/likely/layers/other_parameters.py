"""`OtherParameters` tells that the candidate's layer uses the parameters of another layer in place of its own.

Which parameters a layer uses, the graphs of both programs state, and which are those of the other program, the pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.clauses import some_of
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, key_of, split_key

#: The least relative difference of two parameters that cannot be taken for each other.
_APART: Final = 1e-3


class OtherParameters:
    """OtherParameters finds the parameters that layers use.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match]) -> None:
        self._dumps, self._tensors = dumps, FloatTensors(dumps.ref)
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for match in (each for each in matches if split_key(each.ref)[0] == PARAM):
            for key in match.recipe.keys:
                self._names[dumps.cand.resolve(key)].add(dumps.ref.resolve(match.ref))

    def words(self, match: Match) -> str:
        """Returns a clause about parameters that are used in place of others; "" where none are.

        Args:
            match: The pair of the values that the layers make.
        """
        own, its = _used(self._dumps.ref, match.ref), _used(self._dumps.cand, match.cand)
        if not all(key in self._names for key in its):
            return ""
        known = set().union(*(self._names[key] for key in its))
        left_out, others = [each for each in own if each not in known], sorted(known.difference(own))
        found = {key: self._in_place(key, others) for key in left_out}
        if not found or None in found.values() or len({*found.values()}) != len(others):
            return ""
        return f"uses {_names([*found.values()])} in place of {_names([*found])}"

    def _in_place(self, key: str, others: Sequence[str]) -> str | None:
        """Returns which of other parameters alone has the shape of one, and other values; None for none."""
        shape, tensors = self._dumps.ref.entry(key).shape, self._tensors
        fitting = [each for each in others if self._dumps.ref.entry(each).shape == shape]
        one, other = tensors.tensor(key), tensors.tensor(fitting[0]) if len(fitting) == 1 else None
        if one is None or other is None or not np.linalg.norm(one - other) > _APART * np.linalg.norm(one):
            return None
        return fitting[0]


def _used(source: DumpSource, key: str) -> list[str]:
    """Returns the keys of the parameters that the layer of a value and the layers inside of it use."""
    layers, name = source.manifest.layers, split_key(key)[1]
    layer = next((each for each in reversed(layers) if name in each.outputs), None)  # a part comes after its composite
    if layer is None:
        return []
    inside = (each for each in layers if each.path == layer.path or each.path.startswith(f"{layer.path}/"))
    return [*dict.fromkeys(source.resolve(key_of(PARAM, name)) for each in inside for name in each.params)]


def _names(keys: Sequence[str | None]) -> str:
    return some_of([split_key(key)[1] for key in keys if key is not None])
