"""`PairedInputs` finds whether two values are computed from values that are paired with each other.

What a value is computed from is followed back through values that only one of the programs has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

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
        found = self._ref(ref).paired
        return bool(found) and found == self._cand(cand).paired

    def share(self, ref: str, cand: str) -> bool:
        """Returns whether a pair is among the nearest values that both are computed from.

        Args:
            ref: The key of a value of the reference.
            cand: The key of a value of the candidate.
        """
        return not self._ref(ref).paired.isdisjoint(self._cand(cand).paired)

    def are_apart(self, ref: str, cand: str) -> bool:
        """Returns whether one value is computed from paired ones, and the other from inputs that are not paired alone.

        Args:
            ref: The key of a value of the reference.
            cand: The key of a value of the candidate.
        """
        one, other = self._ref(ref), self._cand(cand)
        return (one.is_given and bool(other.paired)) or (other.is_given and bool(one.paired))


class _Behind(NamedTuple):
    """_Behind has the nearest paired values that a value is computed from, by the reference's keys.

    Attributes:
        paired: Their keys.
        is_given: Whether there are none, but inputs of the program that are not paired.
    """

    paired: frozenset[str]
    is_given: bool


class _Nearest:
    """_Nearest finds what a value is computed from."""

    def __init__(self, source: DumpSource, paired: Mapping[str, Collection[str]]) -> None:
        self._sources = sources_of(source.manifest.layers)
        self._paired = paired

    def __call__(self, key: str) -> _Behind:
        found: set[str] = set()
        seen, waiting = {key}, [key]
        while waiting:
            for each in self._sources.get(waiting.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    found |= {*self._paired.get(each, ())}
                    waiting += () if each in self._paired else (each,)
        given = any(split_key(each)[0] == INPUT for each in seen - {key})
        return _Behind(frozenset(found), given and not found)
