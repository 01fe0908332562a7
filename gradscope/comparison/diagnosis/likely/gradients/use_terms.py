"""`UseTerms` tells which use of a parameter contributes to its gradient in one program alone.

The gradient of a parameter that several layers use is the sum of what each contributes. A port that looks up tokens in
a table behind `stop_gradient`, or computes one of two heads from a copy that is not trained, leaves a term out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import quoted
from gradscope.comparison.diagnosis.refuting.apart.correlations import matrices
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, key_of, split_key

#: The share of a difference that is left where a term makes it.
_LEFT: Final = 1e-2

#: The number of axes of a table.
_OF_TABLE: Final = 2

#: The most uses of one parameter that are computed.
_MOST_USES: Final = 64


class UseTerms:
    """UseTerms computes what the layers of two programs contribute to the gradients of parameters.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = _Uses(dumps.ref), _Uses(dumps.cand)

    def words(self, match: Match, row: ComparisonRow) -> str:
        """Returns a clause about the candidate's gradient, which lacks a term or has one more; "" elsewhere.

        Args:
            match: A pair of gradients of a parameter.
            row: Its row.
        """
        if row.tolerance is None or len(match.recipe.keys) > 1:
            return ""
        name, of_cand = (split_key(each)[1] for each in (match.ref, match.cand))
        of_ref, of_other = self._ref.of(name), self._cand.of(of_cand)
        if max(len(of_ref), len(of_other)) < 2:
            return ""
        ref, cand = self._ref.tensors.tensor(match.ref), self._cand.tensors.made(match.recipe)
        if ref is None or cand is None or ref.shape != cand.shape:
            return ""
        difference = ref - cand
        limit = min(
            _LEFT * float(np.linalg.norm(difference)), row.tolerance * float(np.linalg.norm(ref) + np.linalg.norm(cand))
        )
        sides = ((self._ref, of_ref, difference, "lacks", "to"), (self._cand, of_other, -difference, "has", "beside"))
        for uses, layers, term, verb, to in sides:
            for layer in layers:
                if any(np.linalg.norm(term - each) <= limit for each in uses.terms(layer, ref.shape)):
                    return f"{verb} what {quoted(layer.path)} contributes {to} the reference's"
        return ""


class _Uses:
    """`_Uses` knows the layers that use each parameter of a program."""

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self.tensors = FloatTensors(source)

    def of(self, name: str) -> list[Layer]:
        """Returns the innermost layers that use a parameter, the last one first; none where they are too many."""
        found = self._users.get(name, ())
        around = {each.parent for each in found}
        layers = [each for each in reversed(found) if each.path not in around]
        return layers if len(layers) <= _MOST_USES else []

    def terms(self, layer: Layer, shape: tuple[int, ...]) -> Iterator[Array]:
        """Yields what a layer may contribute to the gradient of a parameter of a shape."""
        if len(layer.outputs) != 1 or len(shape) < _OF_TABLE:
            return
        arriving = self.tensors.tensor(key_of(ACTIVATION_GRAD, layer.outputs[0]))
        if arriving is None:
            return
        for tokens in self._looked_up(layer):
            if len(shape) == _OF_TABLE and arriving.shape == (*tokens.shape, shape[1]) and _are_rows(tokens, shape[0]):
                made = np.zeros(shape)
                np.add.at(made, tokens, arriving)
                yield made
        for read in self.tensors.read_by(layer):
            for one, other in ((read, arriving), (arriving, read)):
                for rows, columns in matrices(shape):
                    if one.shape[-1:] == (rows,) and other.shape == (*one.shape[:-1], columns):
                        yield (one.reshape(-1, rows).T @ other.reshape(-1, columns)).reshape(shape)

    def _looked_up(self, layer: Layer) -> Iterator[Array]:
        """Yields the whole numbers that a layer reads."""
        named = (key_of(family, name) for name in layer.inputs for family in (ACTIVATION, INPUT))
        for key in dict.fromkeys((*named, *layer.sources)):
            if key in self._known and self._source.has_tensor(key):
                entry = self._source.entry(self._source.resolve(key))
                if dtype_class(entry.dtype) == "integer" and entry.shape:
                    yield self._source.array(key)

    @cached_property
    def _users(self) -> Mapping[str, Sequence[Layer]]:
        found: defaultdict[str, list[Layer]] = defaultdict(list)
        for layer in self._source.manifest.layers:
            for name in layer.params:
                found[name].append(layer)
        return found

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self._source.keys())


def _are_rows(tokens: Array, count: int) -> bool:
    return bool(tokens.size and tokens.min() >= 0 and tokens.max() < count)
