"""`JoinedParameters` tells layers apart of which one uses a whole parameter, and the other one a part of it.

A kernel of joined values, as of both ends of an edge, may be several in the other program, whose products are added up.
Each of them has the size of the sum, and the parameter in common with it, and is another value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gradscope.comparison.layout.recipe_steps import Stack, Unstack
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.structure.placing.value_places import places_of
from gradscope.comparison.pairing.structure.shared_parameters import ParameterNames, slice_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, split_key


class JoinedParameters:
    """JoinedParameters knows the parameters that one program has as several of the other.

    Args:
        dumps: The dumps.
        matches: Their pairs; parameters are paired already.
    """

    def __init__(self, dumps: Dumps, matches: Iterable[Match]) -> None:
        of_cand: defaultdict[str, set[str]] = defaultdict(set)
        of_ref: defaultdict[str, set[str]] = defaultdict(set)
        for match in matches:
            family, name = split_key(match.ref)
            # The slices of a stack are parameters of their own, each of another iteration of a loop.
            stacked = any(isinstance(step, Stack | Unstack) for step in match.recipe.steps)
            stacked = stacked or slice_of(match.recipe, dumps.cand.entry(match.cand).shape)[0] is not None
            if family == PARAM and not stacked and dumps.ref.entry(match.ref).shape[:1] != (len(match.recipe.keys),):
                for key in match.recipe.keys:
                    of_cand[name].add(split_key(key)[1])
                    of_ref[split_key(key)[1]].add(name)
        self._of_cand, self._of_ref = _several(of_cand), _several(of_ref)
        any_joined = bool(self._of_cand or self._of_ref)
        self._ref, self._cand = (
            _used(source.manifest.layers) if any_joined else {} for source in (dumps.ref, dumps.cand)
        )

    def are_apart(self, ref: str, cand: str) -> bool:
        """Returns whether one of two values is computed with a whole parameter, and the other with some of its parts.

        Args:
            ref: The name of a value of the reference.
            cand: The name of a value of the candidate.
        """
        own, others = self._ref.get(ref, frozenset()), self._cand.get(cand, frozenset())
        return _in_part(own, others, self._of_cand) or _in_part(others, own, self._of_ref)


def _several(parts: Mapping[str, set[str]]) -> Mapping[str, set[str]]:
    return {name: each for name, each in parts.items() if len(each) > 1}


def _used(layers: Sequence[Layer]) -> Mapping[str, frozenset[str]]:
    """Returns the parameters that each value is computed with, by its name."""
    places = places_of(layers, ParameterNames(layers, {}))
    return {name: place.params or place.around for name, place in places.items()}


def _in_part(whole: Iterable[str], used: frozenset[str], parts: Mapping[str, set[str]]) -> bool:
    own = (parts[name] for name in whole if name in parts)
    return any(not each.isdisjoint(used) and not each <= used for each in own)
