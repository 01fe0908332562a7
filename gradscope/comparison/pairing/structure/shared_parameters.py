"""`shared_parameters` gives the parameters that layers of two programs use common names.

A parameter has the reference's name. One program may have those of all iterations of a loop as one, stacked: an
iteration uses a slice of it, which the other program has as a parameter of its own. What is packed for another reason,
as query, key and value are, is used as a whole, and has the names of all its parts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.layout.recipe_steps import Concatenate, Split, Stack, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM, key_of, split_key
from gradscope.naming.paths import iterations_around


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """A `_Slice` is a part of a parameter.

    Attributes:
        name: Its common name.
        number: Its place among the slices along the first axis; None where it is no slice.
        count: The number of those slices.
    """

    name: str
    number: int | None = None
    count: int = 0


class ParameterNames:
    """ParameterNames knows the common names of the parameters of one program.

    Args:
        layers: The layers of the program.
        slices: The parts of each parameter that has a counterpart, by its own name.
    """

    def __init__(self, layers: Sequence[Layer], slices: Mapping[str, Sequence[_Slice]]) -> None:
        self._slices = slices
        self._counts: dict[str, int] = {}
        for layer in layers:
            for loop, number in iterations_around(layer.path):
                self._counts[loop] = max(self._counts.get(loop, 0), number + 1)

    @property
    def shared(self) -> frozenset[str]:
        """The common names of the parameters that have a counterpart."""
        return frozenset(each.name for slices in self._slices.values() for each in slices)

    def of(self, layer: Layer) -> frozenset[str]:
        """Returns the common names of the parameters that a layer uses; the own names of those without a counterpart.

        Args:
            layer: A layer of the program.
        """
        return self._common(layer, layer.params)

    def read_by(self, layer: Layer) -> frozenset[str]:
        """Returns the common names of the parameters of other layers from which a layer computes its outputs.

        Args:
            layer: A layer of the program.
        """
        sources = map(split_key, layer.sources)
        return self._common(layer, [name for family, name in sources if family == PARAM])

    def _common(self, layer: Layer, params: Iterable[str]) -> frozenset[str]:
        iterations = {(number, self._counts[loop]) for loop, number in iterations_around(layer.path)}
        return frozenset(name for param in params for name in self._names(param, iterations))

    def _names(self, param: str, iterations: Collection[tuple[int | None, int]]) -> list[str]:
        slices = self._slices.get(param, (_Slice(name=param),))
        own = [each.name for each in slices if (each.number, each.count) in iterations]
        return own or [each.name for each in slices]


def shared_parameters(dumps: Dumps, matches: Iterable[Match]) -> tuple[ParameterNames, ParameterNames]:
    """Returns the common names of the parameters of the reference, and of those of the candidate.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """
    of_ref: dict[str, list[_Slice]] = {}
    of_cand: defaultdict[str, list[_Slice]] = defaultdict(list)
    for match in matches:
        family, name = split_key(match.ref)
        if family == PARAM:
            of_ref[name] = list(_stacked(name, match.recipe, dumps.ref.entry(match.ref).shape))
            number, count = slice_of(match.recipe, dumps.cand.entry(match.cand).shape)
            for place, key in enumerate(match.recipe.keys):
                each = of_ref[name][place * len(of_ref[name]) // len(match.recipe.keys)]
                of_cand[split_key(key)[1]].append(_Slice(name=each.name, number=number, count=count))
    return _names_of(dumps.ref, of_ref), _names_of(dumps.cand, of_cand)


def _names_of(source: DumpSource, slices: Mapping[str, Sequence[_Slice]]) -> ParameterNames:
    """Returns the common names of the parameters of a program, which has several of its own for one that is tied."""
    owners = {
        entry.name: split_key(source.resolve(key_of(PARAM, entry.name)))[1]
        for entry in source.manifest.entries
        if entry.family == PARAM and entry.alias_of is not None
    }
    tied = {name: slices[owner] for name, owner in owners.items() if owner in slices}
    return ParameterNames(source.manifest.layers, {**tied, **slices})


def _stacked(name: str, recipe: Recipe, shape: Shape) -> Iterator[_Slice]:
    """Yields the slices of a parameter of the reference that the candidate has as several each; else the whole."""
    count = len(recipe.keys)
    is_row = shape[:1] == (count,) and recipe.steps[-1:] == (Concatenate(0),)
    is_stack = shape and count % shape[0] == 0 and Stack(0) in (*recipe.steps[:1], *recipe.steps[-1:])
    if count > 1 and shape[0] > 1 and (is_row or is_stack):
        yield from (_Slice(name=f"{name}[{number}]", number=number, count=shape[0]) for number in range(shape[0]))
    else:
        yield _Slice(name=name)


def slice_of(recipe: Recipe, shape: Shape) -> tuple[int | None, int]:
    """Returns which slice of a parameter of the candidate a recipe takes, or takes a part of, and of how many.

    Args:
        recipe: The recipe of a parameter of the reference.
        shape: The shape of the candidate's parameter.
    """
    first, *later = recipe.steps or (None,)
    if later and later[-1] == Unstack(0) != first:
        return recipe.part % shape[0], shape[0]  # every slice is a part, see `stacked_parts`
    is_slice = shape and first in (Unstack(0), Split(0, shape[0]))
    if not is_slice or any(isinstance(step, Unstack) for step in later):
        return None, 0
    into = [step.into for step in later if isinstance(step, Split)]
    parts = math.prod(each if isinstance(each, int) else len(each) for each in into)
    return recipe.part // parts, shape[0]
