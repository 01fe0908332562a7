"""`by_structure` matches what is computed in the same place of two programs, although the values differ.

What other passes matched divides both programs into segments. Within a segment, tensors are aligned in execution order
so that the most evidence is in favour: layers that use paired parameters, or are read by such layers, the kind of the
operation, the end of the name, and values that nearly agree in some layout. Parameters are aligned first, because they
show which layers belong together.

Layers with parameters that are paired otherwise speak against a pair, but do not exclude it: a port may use the weight
of another layer by mistake. That both are computed from values that are paired with each other speaks for it then, and
for pairs of layers without parameters. Two tensors are matched only where more than their size speaks for it. Results
of different operations that no parameter ties are not matched where either value occurs elsewhere in the other program.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias

from gradscope.comparison.layout.layouts import agreeing_layouts, relative_error
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.comparison.pairing.structure.paired_inputs import PairedInputs
from gradscope.comparison.pairing.structure.shared_parameters import shared_parameters
from gradscope.comparison.pairing.structure.value_places import (
    Place,
    first_uses,
    index_of,
    later_uses,
    places_of,
    siblings,
)
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key
from gradscope.naming.paths import loops_around

#: The evidence for a pair, by what it is. A pair needs more than `_SIZE`.
_SIZE, _END, _OPERATION, _READERS, _LAYER, _VALUES = 1, 2, 2, 3, 4, 6

#: The evidence against a pair of layers that use parameters which are not paired with each other.
_OTHER_LAYER: Final = -3

#: The evidence against a pair of layers of which one has at most half of the other's parameters, as a part of it has,
#: and against one where the program of the larger has a layer of the smaller's parameters alone besides.
_PART: Final = 1

#: The evidence for a pair of layers without parameters in common whose inputs are paired with each other.
_INPUTS: Final = 3

#: The relative error of values that nearly agree.
_NEARLY: Final = 0.3

#: The largest number of pairs of one segment that are rated.
_MOST_PAIRS: Final = 250_000

#: The largest number of pairs of one segment whose values are compared.
_MOST_VALUES: Final = 400

#: Returns the evidence for a pair of keys; 0 for none.
_Rating: TypeAlias = Callable[[str, str], int]


def by_structure(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of parameters and of activations in the same place of two programs."""
    if not dumps.ref.manifest.layers or not dumps.cand.manifest.layers:
        return
    params = list(_aligned(dumps, unmatched, PARAM, _parameter_rating(dumps)))
    yield from params
    paired = unmatched.with_matches(params)
    yield from _aligned(dumps, paired, ACTIVATION, _Places(dumps, paired).rating)


def _aligned(dumps: Dumps, pairing: Pairing, family: str, rating: _Rating) -> Iterator[Match]:
    ref, cand = (_owners(source, keys, family) for source, keys in _sides(dumps, pairing))
    anchors = _anchors(dumps, pairing, family)
    for ones, others in _segments(dumps, ref, cand, anchors):
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
    """Returns the execution indices of pairs that are in the same order in both dumps."""
    plain = (match for match in pairing.matched if split_key(match.ref)[0] == family and len(match.recipe.keys) == 1)
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
    dumps: Dumps, ref: Sequence[str], cand: Sequence[str], anchors: Sequence[tuple[int, int]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the keys of both dumps between two pairs that are next to each other."""
    firsts, seconds = [first for first, _ in anchors], [second for _, second in anchors]
    ones: dict[int, list[str]] = {}
    for key in ref:
        ones.setdefault(bisect_left(firsts, index_of(dumps.ref, key)), []).append(key)
    others: dict[int, list[str]] = {}
    for key in cand:
        others.setdefault(bisect_left(seconds, index_of(dumps.cand, key)), []).append(key)
    yield from ((ones[segment], others[segment]) for segment in ones if segment in others)


def _best_alignment(ones: Sequence[str], others: Sequence[str], rating: _Rating) -> list[tuple[str, str]]:
    """Returns the pairs, in the order of both, with the most evidence altogether."""
    ratings = [[rating(one, other) for other in others] for one in ones]
    best = [[0] * (len(others) + 1) for _ in range(len(ones) + 1)]
    for row in reversed(range(len(ones))):
        for column in reversed(range(len(others))):
            own = ratings[row][column]
            together = own + best[row + 1][column + 1] if own > _SIZE else 0
            best[row][column] = max(together, best[row + 1][column], best[row][column + 1])
    found: list[tuple[str, str]] = []
    row = column = 0
    while row < len(ones) and column < len(others):
        own = ratings[row][column]
        if own > _SIZE and best[row][column] == own + best[row + 1][column + 1]:
            found.append((ones[row], others[column]))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return found


def _parameter_rating(dumps: Dumps) -> _Rating:
    def rating(ref: str, cand: str) -> int:
        one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
        if _sizes(one) != _sizes(other) or not comparable(one.dtype, other.dtype):
            return 0
        return _SIZE + (_END if _end(one) == _end(other) or len(one.shape) > 1 else 0)

    return rating


def _sizes(entry: Entry) -> list[int]:
    """Returns the sizes of a tensor's axes in any order; a number may be stored as an array of one."""
    return sorted(size for size in entry.shape if size != 1)


def _end(entry: Entry) -> str:
    """Returns the last word or number of a name, without the numbers of iterations: `mix` for `mix[0]`."""
    loop = next((each for each in loops_around(entry.name) if "/" not in entry.name[len(each) :]), entry.name)
    return (tokens_of(loop) or ("",))[-1]


class _Places:
    """_Places rates pairs of activations by their places in two programs.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far; parameters are paired already.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._dumps = dumps
        self._search = LayoutSearch(dumps)
        self._inputs = PairedInputs(dumps, pairing)
        in_ref, in_cand = shared_parameters(dumps, pairing.matched)
        self._ref = places_of(dumps.ref.manifest.layers, in_ref)
        self._cand = places_of(dumps.cand.manifest.layers, in_cand)
        self._known = in_ref.shared
        self._alone = (
            {in_ref.of(layer) for layer in dumps.ref.manifest.layers},
            {in_cand.of(layer) for layer in dumps.cand.manifest.layers},
        )
        self._ref_uses, self._cand_uses = first_uses(dumps.ref, self._ref), first_uses(dumps.cand, self._cand)
        self._several = siblings(dumps.ref.manifest.layers) | siblings(dumps.cand.manifest.layers)
        self._compared = 0
        self._equality = equality = Equality(dumps)
        self._in_cand = _occurring(dumps.ref, _by_size(dumps.cand), equality.recipe)
        self._in_ref = _occurring(dumps.cand, _by_size(dumps.ref), lambda cand, ref: equality.recipe(ref, cand))

    def rating(self, ref: str, cand: str) -> int:
        """Returns the evidence for a pair of keys; 0 or less where there is none."""
        one, other = self._dumps.ref.entry(ref), self._dumps.cand.entry(cand)
        place, candidate = self._ref.get(one.name, Place()), self._cand.get(other.name, Place())
        own, others = place.params & self._known, candidate.params & self._known
        if bool(own) is not bool(others):  # one program has a scope for the last step of a layer
            own, others = place.around & self._known, candidate.around & self._known
        if not comparable(one.dtype, other.dtype):
            return 0
        later = {*later_uses(one, others - own, self._ref_uses), *later_uses(other, own - others, self._cand_uses)}
        if math.prod(one.shape) != math.prod(other.shape):
            # A fault can change a shape. Only the parameters distinguish that from another step of the same layer, and
            # from a layer around several of the other program. Of several outputs, another may be the counterpart.
            alone = own & others and later <= {0} and not (one.name in self._several or other.name in self._several)
            return _LAYER if alone and len(one.shape) == len(other.shape) else 0
        early = max(later, default=0) > 0
        operations = one.site.primitive, other.site.primitive
        evidence = (
            _SIZE
            + (_LAYER * (not early) if own & others else _OTHER_LAYER * bool(own and others))
            - _PART * self._parts_between(own, others)
            + _INPUTS * (not own & others and bool(own) is bool(others) and self._inputs.agree(ref, cand))
            + _READERS * bool(place.read_with & candidate.read_with & self._known)
            + _OPERATION * (None not in operations and operations[0] == operations[1])
            + _END * (_end(one) == _end(other))
            + _VALUES * self._nearly_equal(ref, cand)
        )
        apart = not own & others and None not in operations and operations[0] != operations[1]
        apart = apart or one.name in self._several or other.name in self._several
        return 0 if apart and evidence > _SIZE and self._belong_elsewhere(ref, cand) else evidence

    def _parts_between(self, own: frozenset[str], others: frozenset[str]) -> int:
        """Returns how much shows that one of two layers is a part of the other, given the parameters of both."""
        smaller, larger = sorted((own, others), key=len)
        if not own & others or 2 * len(smaller) > len(larger):
            return 0
        return 1 + (smaller in self._alone[larger is others])

    def _belong_elsewhere(self, ref: str, cand: str) -> bool:
        """Returns whether the value of either key occurs in the other program, but not under the other key."""
        return (self._in_cand(ref) or self._in_ref(cand)) and self._equality.recipe(ref, cand) is None

    def _nearly_equal(self, ref: str, cand: str) -> bool:
        known = self._dumps.ref.has_tensor(ref) and self._dumps.cand.has_tensor(cand)
        if self._compared >= _MOST_VALUES or not known:
            return False
        # Norms and means are those of every layout, so that most values are far from each other without being read.
        bound = least_rel_l2(self._equality.ref_stats(ref), self._equality.cand_stats(cand))
        if bound is not None and _NEARLY < bound.rel_l2 < math.inf:
            return False
        self._compared += 1
        arrays = self._search.arrays(ref, cand)
        if arrays[0].size < 2:
            return False
        # Values that are far from each other may agree about as well in other orders of the axes.
        if arrays[0].shape == arrays[1].shape and relative_error(*arrays) <= _NEARLY:
            return True
        agreeing = agreeing_layouts(*arrays, self._search.possible(ref, cand))
        return bool(agreeing) and relative_error(*arrays, agreeing[0]) <= _NEARLY


def _occurring(
    source: DumpSource, others: Mapping[int, Sequence[str]], recipe: Callable[[str, str], object]
) -> Callable[[str], bool]:
    """Returns a function from a key to whether the value of its tensor occurs in the other program, found once.

    Args:
        source: The dump of the key.
        others: The keys of the other dump, by their number of elements.
        recipe: Returns what makes the tensor of one of its keys of that of the other dump; None where values differ.
    """

    @cache  # of no method: it would know what knows it, and stay until a search for cycles
    def occurs(key: str) -> bool:
        size = math.prod(source.entry(key).shape)
        return source.has_tensor(key) and any(recipe(key, other) for other in others.get(size, ()))

    return occurs


def _by_size(source: DumpSource) -> dict[int, list[str]]:
    """Returns the activations of a program by their number of elements; of a single element none."""
    found: dict[int, list[str]] = {}
    for entry in source.manifest.entries:
        key = key_of(entry.family, entry.name)
        if entry.family == ACTIVATION and entry.alias_of is None and source.has_tensor(key):
            found.setdefault(math.prod(entry.shape), []).append(key)
    found.pop(1, None)
    return found
