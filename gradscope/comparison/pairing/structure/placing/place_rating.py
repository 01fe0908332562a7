"""`PlaceRating` rates how much speaks for two values being what is computed in the same place of two programs.

Evidence are layers that use paired parameters, or are read by such layers, the kind of the operation, the end of the
name, and values that nearly agree in some layout.

Layers with parameters that are paired otherwise speak against a pair, but do not exclude it: a port may use the weight
of another layer by mistake. That both are computed from values that are paired with each other speaks for it then, as
for pairs of layers without parameters, and so do names that a pair has with other numbers. Two tensors are matched only
where more than their size speaks for it. Results of different operations that no parameter ties are not matched where
either value occurs elsewhere in the other program.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from gradscope.comparison.layout.layouts import agreeing_layouts, relative_error
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, siblings
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.comparison.pairing.structure.placing.joined_parameters import JoinedParameters
from gradscope.comparison.pairing.structure.placing.learnt_names import LearntNames
from gradscope.comparison.pairing.structure.placing.norm_steps import with_norm_inputs
from gradscope.comparison.pairing.structure.placing.paired_inputs import PairedInputs
from gradscope.comparison.pairing.structure.placing.value_places import (
    Place,
    first_uses,
    later_uses,
    places_of,
    steps_of_loops,
)
from gradscope.comparison.pairing.structure.shared_parameters import shared_parameters
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key
from gradscope.naming.paths import loops_around

#: The evidence for a pair, by what it is. A pair needs more than `SIZE`.
SIZE, _END, _OPERATION, _READERS, _LAYER, _VALUES = 1, 2, 2, 3, 4, 6

#: The evidence for two parameters of one name that only their number of elements ties.
_MERGED: Final = 1

#: The evidence for a pair of layers with parameters whose names another pair has with the numbers of another layer.
_NAMES: Final = 4

#: The evidence against a pair of layers that use parameters which are not paired with each other.
_OTHER_LAYER: Final = -3

#: The evidence against a pair of layers of which one has at most half of the other's parameters, as a part of it has,
#: against one where the program of the larger has a layer of the smaller's parameters alone besides, and against one
#: where the layer around either has more of the other's parameters.
_PART: Final = 1

#: How many more parameters than the other a layer may have of two that return values of other sizes: a bias.
_LACKING: Final = 1

#: The evidence for a pair of layers without parameters in common whose inputs are paired with each other.
_INPUTS: Final = 3

#: The relative error of values that nearly agree.
_NEARLY: Final = 0.3

#: The largest number of pairs of one segment whose values are compared.
_MOST_VALUES: Final = 400


def parameter_rating(dumps: Dumps) -> Callable[[str, str], int]:
    """Returns what rates pairs of the keys of parameters."""

    def rating(ref: str, cand: str) -> int:
        one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
        if math.prod(one.shape) != math.prod(other.shape) or not comparable(one.dtype, other.dtype):
            return 0
        if _sizes(one) != _sizes(other):  # as a bias of all heads, and one of each head
            return SIZE + _MERGED * (_end(one) == _end(other))
        return SIZE + (_END if _end(one) == _end(other) or len(one.shape) > 1 else 0)

    return rating


def _sizes(entry: Entry) -> list[int]:
    """Returns the sizes of a tensor's axes in any order; a number may be stored as an array of one."""
    return sorted(size for size in entry.shape if size != 1)


def _end(entry: Entry) -> str:
    """Returns the last word or number of a name, without the numbers of iterations: `mix` for `mix[0]`."""
    loop = next((each for each in loops_around(entry.name) if "/" not in entry.name[len(each) :]), entry.name)
    return (tokens_of(loop) or ("",))[-1]


class PlaceRating:
    """PlaceRating rates pairs of activations by their places in two programs.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far; parameters are paired already.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._dumps = dumps
        self._search = LayoutSearch(dumps)
        self._inputs = PairedInputs(dumps, pairing)
        self._names, self._joined = LearntNames(pairing.matched), JoinedParameters(dumps, pairing.matched)
        in_ref, in_cand = shared_parameters(dumps, pairing.matched)
        free = frozenset(pairing.only_ref), frozenset(pairing.only_cand)
        self._ref = with_norm_inputs(dumps.ref, places_of(dumps.ref.manifest.layers, in_ref), free[0])
        self._cand = with_norm_inputs(dumps.cand, places_of(dumps.cand.manifest.layers, in_cand), free[1])
        self._known, self._in_parts = in_ref.shared, _in_parts(pairing.matched)
        self._alone = (
            {in_ref.of(layer) for layer in dumps.ref.manifest.layers},
            {in_cand.of(layer) for layer in dumps.cand.manifest.layers},
        )
        self._ref_uses, self._cand_uses = first_uses(dumps.ref, self._ref), first_uses(dumps.cand, self._cand)
        layers = dumps.ref.manifest.layers, dumps.cand.manifest.layers
        self._outputs, self._steps = tuple(map(siblings, layers)), tuple(map(steps_of_loops, layers, (in_ref, in_cand)))
        self._several = frozenset.union(*self._outputs)
        self._compared = 0
        self._equality = equality = Equality(dumps)
        self._in_cand = _occurring(dumps.ref, _by_size(dumps.cand), equality.recipe)
        self._in_ref = _occurring(dumps.cand, _by_size(dumps.ref), lambda cand, ref: equality.recipe(ref, cand))

    def of(self, ref: str, cand: str) -> int:
        """Returns the evidence for a pair of keys; 0 or less where there is none."""
        one, other = self._dumps.ref.entry(ref), self._dumps.cand.entry(cand)
        place, candidate = self._ref.get(one.name, Place()), self._cand.get(other.name, Place())
        own, others = place.params & self._known, candidate.params & self._known
        if bool(own) is not bool(others):  # one program has a scope for the last step of a layer
            own, others = place.around & self._known, candidate.around & self._known
        if not comparable(one.dtype, other.dtype) or self._is_step_of_other(one.name, other.name):
            return 0
        if not own & others and self._inputs.are_apart(ref, cand):  # as of another batch that the loss reads, too
            return 0
        later = {*later_uses(one, others - own, self._ref_uses), *later_uses(other, own - others, self._cand_uses)}
        if math.prod(one.shape) != math.prod(other.shape):
            # A fault can change a shape. Only the parameters distinguish that from another step of the same layer, and
            # from a layer around several of the other program. Of several outputs, another may be the counterpart.
            alone = own & others and later <= {0} and not (one.name in self._several or other.name in self._several)
            alone = alone and abs(len(own) - len(others)) <= _LACKING and self._in_parts.isdisjoint(own & others)
            return _LAYER if alone and len(one.shape) == len(other.shape) else 0
        if self._joined.are_apart(one.name, other.name):
            return 0
        early = max(later, default=0) > 0
        operations = one.site.primitive, other.site.primitive
        evidence = (
            SIZE
            + (_LAYER * (not early) if own & others else _OTHER_LAYER * bool(own and others))
            - _PART * (parts := self._parts_between(own, others))
            - _PART * bool(own & others and others & place.outer - own)
            - _PART * bool(own & others and own & candidate.outer - others)
            - _OPERATION * (parts > 1 and None not in operations and operations[0] != operations[1])
            + _INPUTS * (not own & others and bool(own) is bool(others) and self._inputs.agree(ref, cand))
            + _READERS * place.is_read_like(candidate, self._known)
            + _OPERATION * (None not in operations and operations[0] == operations[1])
            + _END * (_end(one) == _end(other))
            + _NAMES * (bool(own and others) and self._names.agree(one.name, other.name))
            + _VALUES * self._nearly_equal(ref, cand)
        )
        apart = not own & others and None not in operations and operations[0] != operations[1]
        apart = apart or one.name in self._several or other.name in self._several
        return 0 if apart and evidence > SIZE and self._belong_elsewhere(ref, cand) else evidence

    def _parts_between(self, own: frozenset[str], others: frozenset[str]) -> int:
        """Returns how much shows that one of two layers is a part of the other, given the parameters of both."""
        smaller, larger = sorted((own, others), key=len)
        if not own & others or 2 * len(smaller) > len(larger):
            return 0
        return 1 + (smaller in self._alone[larger is others])

    def _is_step_of_other(self, one: str, other: str) -> bool:
        """Returns whether one value is a result of a layer, and the other one of a step of a loop in its place."""
        (own, its), (steps, others) = self._outputs, self._steps
        return (one in own - its - steps and other in others) or (other in its - own - others and one in steps)

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


def _in_parts(matches: Iterable[Match]) -> frozenset[str]:
    """Returns the names of the reference's parameters that are joined of several, or are parts of one.

    A layer that uses such a parameter may be one of several that are one layer of the other program.
    """
    found: set[str] = set()
    users: defaultdict[str, list[str]] = defaultdict(list)
    for match in (each for each in matches if split_key(each.ref)[0] == PARAM):
        name = split_key(match.ref)[1]
        found |= {name} if len(match.recipe.keys) > 1 else set()
        users[match.cand].append(name)
    return frozenset(found.union(*(each for each in users.values() if len(each) > 1)))


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
