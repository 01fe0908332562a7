"""`formula_of` finds the formula of a step, whatever kind it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.step_kinds import Operation, recognised
from gradscope.comparison.diagnosis.suspects.replaying.contractions import contractions
from gradscope.comparison.diagnosis.suspects.replaying.dense_formulas import dense_formulas
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads
from gradscope.comparison.diagnosis.suspects.replaying.masked_softmax import softmaxes, softmaxes_of_products
from gradscope.comparison.diagnosis.suspects.replaying.normalisations import normalisations
from gradscope.comparison.diagnosis.suspects.replaying.sums_of_terms import gathered, sums_of_terms

#: The largest number of elements of a value whose formula is looked for.
_MOST_ELEMENTS: Final = 1 << 18


def formula_of(reads: Reads, value: Array) -> Formula | None:
    """Returns the formula of a step; None where none of those that are known makes its value.

    Args:
        reads: What the step reads, its parameters among that.
        value: What it computes.
    """
    if max((each.size for each in (*reads, value)), default=0) > _MOST_ELEMENTS or not value.any():
        return None
    kinds = (
        gathered,
        _operations,
        softmaxes,
        softmaxes_of_products,
        dense_formulas,
        contractions,
        normalisations,
        sums_of_terms,
    )
    return next(itertools.chain.from_iterable(kind(reads, value) for kind in kinds), None)


def _operations(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formulas of well-known functions of one value."""
    for at, read in enumerate(reads):
        for operation, others in recognised(read, value):
            formulas = [Formula(words=each.words, apply=_of_one(each, at), uses=(at,)) for each in (operation, *others)]
            yield Formula(words=operation.words, apply=formulas[0].apply, uses=(at,), others=tuple(formulas[1:]))


def _of_one(operation: Operation, at: int) -> Callable[[Reads], Array]:
    return lambda reads: operation.apply(reads[at])
