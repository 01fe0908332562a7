"""`calls_in_turn` finds which call of a layer in one program is which in the other, where names do not tell.

A layer that is called in a scan, and once before or behind it, has the calls `norm[0]`, `norm[1]` and `norm`; the same
loop written out has `norm`, `norm#2` and `norm#3`. One called twice in an iteration is `norm[0]#2` there, and `norm#4`.
If both programs call it as often, they do so in turn.

If one program calls it more often, as to log a prediction before it computes the loss, its first calls need not be
those of the other program. Which ones are is shown by whether a gradient arrives at them, and by their values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from gradscope.comparison.metrics.bounds import statistics_agree
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.record import Json
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of
from gradscope.naming.paths import loops_around, without_iterations, without_occurrence

#: One name of each call, the same in both programs, by its own name.
Calls: TypeAlias = Mapping[str, str]

#: What counts for two calls being the same: that a gradient arrives at both or at none, equal values, equal gradients.
_ARRIVES, _VALUES, _GRADIENTS = 4, 2, 1

#: The relative change up to which the statistics of two values show the same one.
_AGREE: Final = 1e-4

#: A sum that is less than any other: that of rows for which no place is left.
_IMPOSSIBLE: Final = -(10**9)

#: How many pairs of calls of one layer are looked at: a layer that has more is called in a loop that is written out.
_MOST_PAIRS: Final = 10_000


class _Call(NamedTuple):
    """A `_Call` is what is known of a call without its elements: the statistics of its value and of its gradient.

    Those of a gradient that is absent are None.
    """

    values: Mapping[str, Json]
    gradients: Mapping[str, Json] | None

    def in_common(self, other: _Call) -> int:
        """Returns how much this call and one of the other program have in common."""
        found = _ARRIVES * ((self.gradients is None) is (other.gradients is None))
        found += _VALUES * statistics_agree(self.values, other.values, _AGREE)
        if self.gradients is not None and other.gradients is not None:
            found += _GRADIENTS * statistics_agree(self.gradients, other.gradients, _AGREE)
        return found


def calls_in_turn(dumps: Dumps) -> tuple[Calls, Calls]:
    """Returns the names of the calls of layers that both programs call, but name otherwise, or not as often.

    Args:
        dumps: The dumps, whose values are in the order of their computation.

    Returns:
        Those of the reference, and those of the candidate.
    """
    ref, cand = _names(dumps.ref), _names(dumps.cand)
    if ref == cand or not any("#" in name for name in (*ref, *cand)):
        return {}, {}
    of_ref, of_cand = _calls(ref), _calls(cand)
    loops = [{without_occurrence(loop) for name in names if "[" in name for loop in loops_around(name)}
             for names in (ref, cand)]  # fmt: skip
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for layer in (layer for layer in of_ref if layer in of_cand):
        sides = of_ref[layer], of_cand[layer]
        if {*sides[0]} == {*sides[1]} or not any("#" in name for name in (*sides[0], *sides[1])):
            continue
        if len(sides[0]) != len(sides[1]):  # the output of a loop has its name, and is no call
            sides = tuple([each for each in side if each.rpartition(".")[0] not in own and each not in own]
                          for side, own in zip(sides, loops, strict=True))  # fmt: skip
        numbers = _numbers(dumps, sides)
        for renamed, side, numbered in zip(found, sides, numbers, strict=True):
            renamed |= {name: f"{layer}[{number}]" for name, number in zip(side, numbered, strict=False)}
    return found


def _numbers(dumps: Dumps, sides: tuple[Sequence[str], ...]) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the numbers of the calls of a layer in either program, equal where they are the same call.

    Those of calls that one program has more come behind all others. There are none where names serve as well.

    Args:
        dumps: The dumps.
        sides: The names of the calls in the reference, and those in the candidate.
    """
    few, many = sorted(map(len, sides))
    if few == many:
        return range(few), range(few)
    if few * many > _MOST_PAIRS:
        return (), ()
    calls = [_call(source, name) for source, side in zip((dumps.ref, dumps.cand), sides, strict=True) for name in side]
    ref, cand = calls[: len(sides[0])], calls[len(sides[0]) :]
    if len(ref) == few:
        places = _best_places([[one.in_common(other) for other in cand] for one in ref])
    else:
        places = _best_places([[other.in_common(one) for one in ref] for other in cand])
    if places == [*range(few)] and sides[0][:few] == sides[1][:few]:
        return (), ()
    number_at = {place: number for number, place in enumerate(places)}
    of_many = [number_at.get(place, few + place) for place in range(many)]
    return (range(few), of_many) if len(ref) == few else (of_many, range(few))


def _best_places(in_common: Sequence[Sequence[int]]) -> list[int]:
    """Returns an increasing place for each row so that the sum of what is there is largest; of several, the first.

    Args:
        in_common: What is at each place, by row; there are as many places as rows, or more.
    """
    rows, places = len(in_common), len(in_common[0]) if in_common else 0
    # The largest sum of the rows from one on, in the places from one on, is that without the place or with it.
    best = [[0] * (places + 1) for _ in range(rows + 1)]
    for row in reversed(range(rows)):
        best[row][places] = _IMPOSSIBLE
        for place in reversed(range(places)):
            best[row][place] = max(in_common[row][place] + best[row + 1][place + 1], best[row][place + 1])
    found: list[int] = []
    place = 0
    for row in range(rows):
        while best[row][place] > in_common[row][place] + best[row + 1][place + 1]:
            place += 1
        found.append(place)
        place += 1
    return found


def _call(source: DumpSource, name: str) -> _Call:
    gradient = _statistics(source, key_of(ACTIVATION_GRAD, name))
    return _Call(_statistics(source, key_of(ACTIVATION, name)) or {}, gradient)


def _statistics(source: DumpSource, key: str) -> Mapping[str, Json] | None:
    """Returns the statistics of a tensor; None where it is absent."""
    try:
        entry = source.entry(source.resolve(key))
    except KeyError:
        return None
    return None if entry.absent is not None else entry.stats


def _names(source: DumpSource) -> list[str]:
    return [entry.name for entry in source.manifest.entries if entry.family == ACTIVATION]


def _calls(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of the calls of each layer, in order, by its name without numbers."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        found[without_iterations(without_occurrence(name))].append(name)
    return found
