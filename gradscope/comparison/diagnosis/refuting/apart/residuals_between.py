"""`residual_between` finds that one value of a pair is the sum of a residual connection, and the other one its branch.

One program may have the sum `x + f(y)` inside of a layer, and the other `y` or `f(y)`, and add outside of the layer.
Such a pair differs, whatever else is right. That the program which has the branch adds up behind it is what its graph
shows: all that reads the branch reads what that is computed from, too. Or the gradient that arrives at the branch shows
it, which is that at the sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.functions_between import MOST_ELEMENTS
from gradscope.comparison.diagnosis.refuting.apart.pair_values import both, is_close, of_gradients, with_gradients
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import before, inverted, sources_of
from gradscope.naming import ACTIVATION, INPUT, PARAM, printable, split_key

#: The functions that may be applied to a value before it is added, by name: "" for the value.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"": np.copy, **ELEMENTWISE})

#: The families of what may be added to a branch.
_VALUES: Final = (ACTIVATION, INPUT)

#: The fewest elements that show a sum, and the number of those that rule one out.
_FEWEST: Final = 16
_SAMPLE: Final = 256

#: The least share of a sum that its branch has.
_SHARE: Final = 1e-2

#: The relative error up to which a gradient is that at the sum.
_AGREE: Final = 1e-3


class Residual(NamedTuple):
    """Residual stores which value of a pair is a sum, and of what.

    Attributes:
        of_ref: Whether the sum is the reference's value.
        term: The key of what is added to the branch, in the program that has the sum.
        functions: The names of the functions that are applied to the term and to the branch, "" for none.
    """

    of_ref: bool
    term: str
    functions: tuple[str, str]

    @property
    def shifted(self) -> bool:
        """Whether the values have one gradient, as the branch is a term of the sum."""
        return not self.functions[1]

    def stages(self, match: Match) -> dict[str, str]:
        """Returns what both values are, in words, by their keys, and their gradients where those are no pair.

        Args:
            match: The pair.
        """
        total, branch = (match.ref, match.cand) if self.of_ref else (match.cand, match.ref)
        term, part = (
            f"the {name} of {_quoted(key)}" if name else _quoted(key)
            for name, key in zip(self.functions, (self.term, branch), strict=True)
        )
        words = {total: f"the sum of {term} and {part}", branch: f"a term of the sum {_quoted(total)}"}
        return words if self.shifted else with_gradients(words)


def residual_between(dumps: Dumps, match: Match, tolerance: float) -> Residual | None:
    """Returns which value of a pair is a sum with the other one, in both programs; None where that is not known.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        tolerance: The largest relative error.
    """
    values = both(dumps, match)
    if values is None or len(match.recipe.keys) > 1 or not _FEWEST <= values[0].size <= MOST_ELEMENTS:
        return None
    for of_ref in (True, False):
        total, branch = values if of_ref else values[::-1]
        for term, value in _terms(dumps, match, of_ref=of_ref):
            found = _functions(total, branch, value, tolerance) if value.shape == total.shape else None
            if found is not None and (
                _is_skipped(dumps, match, of_ref=of_ref) or _is_chained(dumps, match, found[1], of_ref=of_ref)
            ):
                return Residual(of_ref, term, found)
    return None


def _terms(dumps: Dumps, match: Match, *, of_ref: bool) -> Iterator[tuple[str, Array]]:
    """Yields what a sum is computed from, in the layout of the reference, by the keys in the program that has it."""
    source, key = (dumps.ref, match.ref) if of_ref else (dumps.cand, match.cand)
    tensors, known = FloatTensors(source), frozenset(source.keys())
    for each in _values_before(source, source.resolve(key)):
        recipe = replace(match.recipe, keys=(each,))
        fits = each in known and source.entry(each).shape == source.entry(key).shape
        value = None if not fits else tensors.tensor(each) if of_ref else tensors.made(recipe)
        if value is not None:
            yield each, value
    for each, rows in _looked_up(source, source.resolve(key)):
        yield each, rows if of_ref else match.recipe.made_of([rows])


def _looked_up(source: DumpSource, key: str) -> Iterator[tuple[str, Array]]:
    """Yields the rows of tables that a value is computed from, as the embedding of tokens, which may have no entry."""
    shape, tensors = source.entry(key).shape, FloatTensors(source)
    known = [each for each in sources_of(source.manifest.layers).get(key, ()) if source.has_tensor(each)]
    for table in (each for each in known if split_key(each)[0] == PARAM):
        sizes = source.entry(table).shape
        for index in (each for each in known if split_key(each)[0] == INPUT):
            entry = source.entry(index)
            if dtype_class(entry.dtype) != "integer" or (*entry.shape, *sizes[1:]) != shape or not sizes[1:]:
                continue
            rows, values = source.array(index), tensors.tensor(table)
            if values is not None and rows.size and rows.min() >= 0 and rows.max() < len(values):
                yield table, values[rows]


def _functions(total: Array, branch: Array, term: Array, tolerance: float) -> tuple[str, str] | None:
    """Returns the functions of a term and of a branch that add up to a value; None where none do."""
    step = -(-total.size // _SAMPLE)
    sums, *others = (each.reshape(-1)[::step] for each in (total, branch, term))
    branches, terms = (np.stack([function(each) for function in _FUNCTIONS.values()]) for each in others)
    errors = np.linalg.norm(sums - terms[:, None] - branches, axis=-1)
    # The sample is not held so strictly that its own error would rule a sum out.
    possible = (errors <= 10 * tolerance * np.linalg.norm(branches, axis=-1)).reshape(-1)
    pairs = itertools.compress(itertools.product(_FUNCTIONS, _FUNCTIONS), possible)
    for one, other in sorted(pairs, key=lambda names: sum(map(bool, names))):
        part = _FUNCTIONS[other](branch)
        share = float(np.linalg.norm(part)) / max(float(np.linalg.norm(total)), math.ulp(0.0))
        if share > _SHARE and is_close(total - _FUNCTIONS[one](term), part, tolerance):
            return one, other
    return None


def _is_skipped(dumps: Dumps, match: Match, *, of_ref: bool) -> bool:
    """Returns whether all that reads the branch in its program reads what the branch is computed from, too.

    That is whatever is before it: where a block has its own norm and several layers, none of these is added.
    """
    source, key = (dumps.cand, match.cand) if of_ref else (dumps.ref, match.ref)
    sources, owner = sources_of(source.manifest.layers), source.resolve(key)
    earlier = {each for each in before(sources, (owner,)) if split_key(each)[0] in _VALUES} - {owner}
    readers = [each for each in inverted(sources).get(owner, ()) if split_key(each)[0] == ACTIVATION]
    return bool(readers) and all(not earlier.isdisjoint(sources[each]) for each in readers)


def _is_chained(dumps: Dumps, match: Match, function: str, *, of_ref: bool) -> bool:
    """Returns whether the gradient at the branch is that at the sum, times the slope of the function of the branch."""
    values, gradients = both(dumps, match), both(dumps, of_gradients(match))
    if values is None or gradients is None or not all(map(np.any, gradients)):
        return False
    branch, (at_sum, at_branch) = values[1 if of_ref else 0], gradients if of_ref else gradients[::-1]
    step, apply = 1e-5 * np.maximum(np.abs(branch), 1.0), _FUNCTIONS[function]
    slope = (apply(branch + step) - apply(branch - step)) / (2 * step)
    return is_close(slope * at_sum, at_branch, _AGREE)


def _values_before(source: DumpSource, key: str) -> list[str]:
    found = sources_of(source.manifest.layers).get(key, ())
    return [each for each in found if split_key(each)[0] in _VALUES]


def _quoted(key: str) -> str:
    family, name = split_key(key)
    return f"rows of `{printable(name)}`" if family == PARAM else f"`{printable(name)}`"
