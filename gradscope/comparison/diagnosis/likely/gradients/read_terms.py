"""`ReadTerms` tells which layer that reads an input contributes to its gradient in one program alone.

The gradient of an input that several layers read, as the text that each block of an image's network attends to, is the
sum of what each contributes. A port that stops it before one of them leaves a term out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import quoted
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION_GRAD, INPUT, PARAM, key_of, split_key

#: The share of a difference that is left where a term makes it.
_LEFT: Final = 1e-2

#: The number of axes of a kernel that is a matrix.
_OF_MATRIX: Final = 2

#: The most readers of one input whose terms are computed.
_MOST_READERS: Final = 64


class ReadTerms:
    """ReadTerms computes what the layers of two programs contribute to the gradients of inputs.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = _Readers(dumps.ref), _Readers(dumps.cand)

    def words(self, match: Match, row: ComparisonRow) -> str:
        """Returns a clause about the candidate's gradient, which lacks a term or has one more; "" elsewhere.

        Args:
            match: A pair of gradients of an input.
            row: Its row.
        """
        ref, cand = self._ref.tensors.tensor(match.ref), self._cand.tensors.made(match.recipe)
        if ref is None or cand is None or ref.shape != cand.shape or len(match.recipe.keys) > 1 or not row.tolerance:
            return ""
        lacking, limit = ref - cand, _LEFT * float(np.linalg.norm(ref - cand))
        sides = ((self._ref, match.ref, lacking, "lacks", "to"), (self._cand, match.cand, -lacking, "has", "beside"))
        for readers, key, term, verb, to in sides:
            for layer in readers.of(split_key(key)[1]):
                if any(np.linalg.norm(term - each) <= limit for each in readers.terms(layer, ref.shape)):
                    return f"{verb} what {quoted(layer.path)} contributes {to} the reference's"
        return ""


class _Readers:
    """`_Readers` knows the layers of a program that multiply an input by a kernel."""

    def __init__(self, source: DumpSource) -> None:
        self._layers, self.tensors = source.manifest.layers, FloatTensors(source)

    def of(self, name: str) -> list[Layer]:
        """Returns the layers with one output that read an input, the last one first; none where they are too many."""
        key = key_of(INPUT, name)
        found = [
            each
            for each in reversed(self._layers)
            if each.params and len(each.outputs) == 1 and (name in each.inputs or key in each.sources)
        ]
        return found if len(found) <= _MOST_READERS else []

    def terms(self, layer: Layer, shape: tuple[int, ...]) -> Iterator[Array]:
        """Yields what a layer may contribute to the gradient of an input of a shape."""
        arriving = self.tensors.tensor(key_of(ACTIVATION_GRAD, layer.outputs[0]))
        if arriving is None:
            return
        kernels = (self.tensors.tensor(key_of(PARAM, name)) for name in layer.params)
        for kernel in (each for each in kernels if each is not None and each.ndim == _OF_MATRIX):
            for rows, turned in ((kernel.shape, kernel), (kernel.shape[::-1], kernel.T)):
                if (*arriving.shape[:-1], rows[1]) == shape and arriving.shape[-1] == rows[0]:
                    yield arriving @ turned
