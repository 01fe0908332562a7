"""`in_turn` drops pairs of iterations that have one number, where the programs run the loop in opposite directions.

A port may run a loop in reverse (`lax.scan(..., reverse=True)`) over weights that it stacks the other way round, or
over a sequence that it reverses before. Its first iteration has the last number then, so that one number is that of
another layer. What shows it are the slices of the weights that are stacked, or the values of the iterations that come
first: a loop that is only run the wrong way round has those under its names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, key_of, split_key
from gradscope.naming.paths import iterations_around

#: The relative error up to which the slices of two stacks are equally large.
_AGREE: Final = 1e-4


def in_turn(find: Pass) -> Pass:
    """Returns a pass by names without the matches of values in iterations that are other ones.

    Args:
        find: The pass.
    """

    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        matches = find(dumps, unmatched)
        loops = _Loops(dumps.ref), _Loops(dumps.cand)
        if not any(each.backwards for each in loops):
            return matches
        are_opposite = cache(_Opposite(dumps, *loops).are_opposite)

        def is_another(match: Match) -> bool:
            (family, name), other = split_key(match.ref), split_key(match.cand)[1]
            pairs = zip(iterations_around(name), iterations_around(other), strict=False)
            of_values = family in (ACTIVATION, ACTIVATION_GRAD)
            return of_values and any(are_opposite(one, another) for (one, _), (another, _) in pairs)

        return [each for each in matches if not is_another(each)]

    return found


class _Loops:
    """_Loops finds the loops of a program, and in which turn their iterations run.

    Args:
        source: The dump.

    Attributes:
        numbers: The numbers of the iterations of each loop in the order in which they run, by its path.
        backwards: The paths of the loops whose last iteration runs first.
    """

    def __init__(self, source: DumpSource) -> None:
        first: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for layer in source.manifest.layers if any("[" in each.path for each in source.manifest.layers) else ():
            for loop, number in iterations_around(f"{layer.path}/"):
                first[loop][number] = min(first[loop].get(number, layer.index), layer.index)
        self.numbers = {loop: sorted(each, key=each.__getitem__) for loop, each in first.items()}
        self.backwards = {
            loop
            for loop, numbers in self.numbers.items()
            if len(numbers) > 1 and all(one > other for one, other in pairwise(numbers))
        }


class _Opposite:
    """_Opposite finds whether two loops are the same one, run in opposite directions.

    Args:
        dumps: The dumps.
        ref: The loops of the reference.
        cand: The loops of the candidate.
    """

    def __init__(self, dumps: Dumps, ref: _Loops, cand: _Loops) -> None:
        self._dumps, self._ref, self._cand = dumps, ref, cand
        self._equality = Equality(dumps)

    def are_opposite(self, ref: str, cand: str) -> bool:
        """Returns whether the first iteration of one loop is the last by number of the other."""
        numbers, others = self._ref.numbers.get(ref, []), self._cand.numbers.get(cand, [])
        if (ref in self._ref.backwards) is (cand in self._cand.backwards) or len(numbers) != len(others):
            return False
        turned = [
            shown
            for name, slices in _stacked(self._dumps.ref, ref, len(numbers)).items()
            if (other := _stacked(self._dumps.cand, cand, len(others)).get(name)) is not None
            and (shown := _is_turned(slices, other)) is not None
        ]
        return any(turned) if turned else self._begin_alike(f"{ref}[{numbers[0]}]", f"{cand}[{others[0]}]")

    def _begin_alike(self, ref: str, cand: str) -> bool:
        """Returns whether a value of one iteration is that of the same name of another, and not a constant."""
        known = frozenset(self._dumps.cand.keys())
        for key in self._dumps.ref.keys():  # noqa: SIM118 - no mapping
            family, name = split_key(key)
            inside = name.removeprefix(ref)
            other = key_of(ACTIVATION, cand + inside)
            if family != ACTIVATION or inside == name or other not in known:
                continue
            if self._dumps.ref.has_tensor(key) and self._dumps.cand.has_tensor(other):
                return self._equality.agree(Match.of(key, other, "name"))
        return False


def _stacked(source: DumpSource, loop: str, count: int) -> Mapping[str, Array]:
    """Returns the norms of the slices of the parameters that the iterations of a loop have, by their names."""
    found: dict[str, Array] = {}
    names = {name for layer in source.manifest.layers if layer.path.startswith(f"{loop}[") for name in layer.params}
    for name in sorted(names):
        key = key_of(PARAM, name)
        if source.has_tensor(key) and source.entry(key).shape[:1] == (count,):
            found[name] = np.linalg.norm(source.array(key).astype(np.float64).reshape(count, -1), axis=1)
    return found


def _is_turned(slices: Array, others: Array) -> bool | None:
    """Returns whether slices are as large as others in reverse; None where they are so as they are, or do not fit."""
    as_they_are, turned = (np.allclose(slices, each, rtol=_AGREE) for each in (others, others[::-1]))
    return None if as_they_are and turned else turned
