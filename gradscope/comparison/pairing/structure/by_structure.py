"""`by_structure` matches what is computed in the same place of two programs, although the values differ.

What other passes matched divides both programs into segments. Within a segment, tensors are aligned in execution order
so that the most evidence is in favour (`placing`). Parameters are aligned first, because they show which layers belong
together; what is left of layers is paired by them alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax, siblings
from gradscope.comparison.pairing.structure.placing.identities import without_identities
from gradscope.comparison.pairing.structure.placing.numbered_outputs import with_nearest_outputs
from gradscope.comparison.pairing.structure.placing.only_users import only_users
from gradscope.comparison.pairing.structure.placing.place_rating import SIZE, PlaceRating, parameter_rating
from gradscope.comparison.pairing.structure.placing.value_places import index_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key

#: The largest number of pairs of one segment that are rated.
_MOST_PAIRS: Final = 250_000

#: Returns the evidence for a pair of keys; 0 for none.
_Rating: TypeAlias = Callable[[str, str], int]


def by_structure(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of parameters and of activations in the same place of two programs."""
    if not dumps.ref.manifest.layers or not dumps.cand.manifest.layers:
        return
    params = list(_aligned(dumps, unmatched, PARAM, parameter_rating(dumps)))
    yield from params
    paired = unmatched.with_matches(params)
    in_order = without_identities(
        dumps, paired, list(_aligned(dumps, paired, ACTIVATION, PlaceRating(dumps, paired).of))
    )
    in_order = with_nearest_outputs(dumps, in_order)
    yield from in_order
    yield from (Match.of(*keys, "order") for keys in only_users(dumps, paired.with_matches(in_order)))


def _aligned(dumps: Dumps, pairing: Pairing, family: str, rating: _Rating) -> Iterator[Match]:
    ref, cand = (_owners(source, keys, family) for source, keys in _sides(dumps, pairing))
    anchors = _anchors(dumps, pairing, family)
    # All parameters of a layer of PyTorch are used at once, and a program of single operations adds a bias last.
    for place in (bisect_right, bisect_left):
        for ones, others in _segments(dumps, ref, cand, anchors, place):
            if len(ones) * len(others) <= _MOST_PAIRS:
                yield from (Match.of(one, other, "order") for one, other in _best_alignment(ones, others, rating))


def _sides(dumps: Dumps, pairing: Pairing) -> tuple[tuple[DumpSource, Sequence[str]], tuple[DumpSource, Sequence[str]]]:
    return (dumps.ref, pairing.only_ref), (dumps.cand, pairing.only_cand)


def _owners(source: DumpSource, keys: Iterable[str], family: str) -> list[str]:
    """Returns the keys of a family in execution order, without aliases and absent tensors."""
    entries = ((source.entry(key), key) for key in keys if split_key(key)[0] == family)
    owners = [(entry.site.index, key) for entry, key in entries if entry.alias_of is None and entry.absent is None]
    return [key for _, key in sorted(owners, key=lambda indexed: indexed[0])]


def _anchors(dumps: Dumps, pairing: Pairing, family: str) -> list[tuple[int, int]]:
    """Returns the execution indices of pairs that are in the same order in both dumps.

    One of several outputs of a layer of PyTorch is none: it has them when the layer ends, wherever they were computed.
    """
    several = [
        {key_of(ACTIVATION, name) for name in siblings(source.manifest.layers)} if not is_of_jax(source) else ()
        for source in (dumps.ref, dumps.cand)
    ]
    plain = (
        match
        for match in pairing.matched
        if split_key(match.ref)[0] == family and len(match.recipe.keys) == 1
        if match.ref not in several[0] and match.cand not in several[1]
    )
    indices = sorted({(index_of(dumps.ref, match.ref), index_of(dumps.cand, match.cand)) for match in plain})
    return _longest_increasing(indices)


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the longest part of pairs, sorted by the first number, in which the second increases, too."""
    tails: list[int] = []
    last: list[int] = []
    before: list[int | None] = []
    for position, (_, second) in enumerate(pairs):
        place = bisect_left(tails, second)
        before.append(last[place - 1] if place else None)
        if place == len(tails):
            tails.append(second)
            last.append(position)
        else:
            tails[place], last[place] = second, position
    found: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _segments(
    dumps: Dumps,
    ref: Sequence[str],
    cand: Sequence[str],
    anchors: Sequence[tuple[int, int]],
    place: Callable[[Sequence[int], int], int],
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the keys of both dumps between two pairs that are next to each other.

    Args:
        dumps: The dumps.
        ref: Keys of the reference.
        cand: Keys of the candidate.
        anchors: The execution indices of the pairs, in order.
        place: Returns the place of an index among sorted ones: before or behind those that it is equal to.
    """
    firsts, seconds = [first for first, _ in anchors], [second for _, second in anchors]
    ones: dict[int, list[str]] = {}
    for key in ref:
        ones.setdefault(place(firsts, index_of(dumps.ref, key)), []).append(key)
    others: dict[int, list[str]] = {}
    for key in cand:
        others.setdefault(place(seconds, index_of(dumps.cand, key)), []).append(key)
    yield from ((ones[segment], others[segment]) for segment in ones if segment in others)


def _best_alignment(ones: Sequence[str], others: Sequence[str], rating: _Rating) -> list[tuple[str, str]]:
    """Returns the pairs, in the order of both, with the most evidence altogether."""
    ratings = [[rating(one, other) for other in others] for one in ones]
    best = [[0] * (len(others) + 1) for _ in range(len(ones) + 1)]
    for row in reversed(range(len(ones))):
        for column in reversed(range(len(others))):
            own = ratings[row][column]
            together = own + best[row + 1][column + 1] if own > SIZE else 0
            best[row][column] = max(together, best[row + 1][column], best[row][column + 1])
    found: list[tuple[str, str]] = []
    row = column = 0
    while row < len(ones) and column < len(others):
        own = ratings[row][column]
        if own > SIZE and best[row][column] == own + best[row + 1][column + 1]:
            found.append((ones[row], others[column]))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return found
