"""`PairedInputs` finds whether two values are computed from values that are paired with each other.

What a value is computed from is followed back through values that only one of the programs has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache

from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, INPUT, split_key


class PairedInputs:
    """PairedInputs compares what values of two programs are computed from.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        in_ref: defaultdict[str, set[str]] = defaultdict(set)
        in_cand: defaultdict[str, set[str]] = defaultdict(set)
        for match in pairing.matched:
            if split_key(match.ref)[0] in (ACTIVATION, INPUT):
                owner = dumps.ref.resolve(match.ref)
                in_ref[owner].add(owner)
                for key in match.recipe.keys:
                    in_cand[dumps.cand.resolve(key)].add(owner)
        self._ref, self._cand = cache(_Nearest(dumps.ref, in_ref)), cache(_Nearest(dumps.cand, in_cand))

    def agree(self, ref: str, cand: str) -> bool:
        """Returns whether the nearest values that both are computed from are the same pairs, and there are any.

        Args:
            ref: The key of a value of the reference.
            cand: The key of a value of the candidate.
        """
        found = self._ref(ref)
        return bool(found) and found == self._cand(cand)

    def share(self, ref: str, cand: str) -> bool:
        """Returns whether a pair is among the nearest values that both are computed from.

        Args:
            ref: The key of a value of the reference.
            cand: The key of a value of the candidate.
        """
        return not self._ref(ref).isdisjoint(self._cand(cand))


class _Nearest:
    """_Nearest finds the nearest paired values that a value is computed from, by the reference's keys."""

    def __init__(self, source: DumpSource, paired: Mapping[str, Collection[str]]) -> None:
        self._sources = sources_of(source.manifest.layers)
        self._paired = paired

    def __call__(self, key: str) -> frozenset[str]:
        found: set[str] = set()
        seen, waiting = {key}, [key]
        while waiting:
            for each in self._sources.get(waiting.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    found |= {*self._paired.get(each, ())}
                    waiting += () if each in self._paired else (each,)
        return frozenset(found)
