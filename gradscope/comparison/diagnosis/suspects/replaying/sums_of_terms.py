"""`sums_of_terms` finds the formula of a value that is a sum of what is read, or of products of two of that.

A residual is one, the affine step of a coupling, and the sum of the features that a coupling scales. Each term may be a
part of the features of what is read, or their sum. `gathered` finds that of a value that only has elements of what is
read, as of halves that are joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, makes

#: The largest number of terms that are tried, and of elements by which sums are told apart.
_MOST_TERMS: Final = 64
_SAMPLE: Final = 256

#: The relative error of a sample up to which it may be that of a sum.
_ALIKE: Final = 1e-4

#: The functions of a factor.
_FUNCTIONS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType({
    "": np.copy,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(0.5 * x)),
})  # fmt: skip

#: Returns a term.
_Make: TypeAlias = Callable[[Reads], Array]


class _Term(NamedTuple):
    """_Term has the positions of what a term is made of, and how it is made of all that is read."""

    uses: tuple[int, ...]
    make: _Make


def sums_of_terms(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formulas of sums of up to three terms.

    Args:
        reads: What a step reads.
        value: What it computes.
    """
    single = [_Term((at,), make) for at, read in enumerate(reads) for make in _terms(at, read.shape, value.shape)]
    products = [
        _Term((*one.uses, *other.uses), partial(_multiplied, one.make, other.make, function))
        for words, function in _FUNCTIONS.items()
        for one, other in (itertools.permutations(single, 2) if words else itertools.combinations(single, 2))
    ]
    terms = [*single, *products][:_MOST_TERMS]
    if not terms or value.size < 2:
        return
    step = -(-value.size // _SAMPLE)
    made = np.stack([each.make(reads).ravel()[::step] for each in terms])
    for chosen in _chosen(made, value.ravel()[::step]):
        found = [terms[each] for each in chosen]
        if makes(_sum(found, reads), value):
            uses = tuple(dict.fromkeys(at for each in found for at in each.uses))
            fewer = [[each for each in found if each is not left] for left in found] if len(found) > 1 else []
            others = tuple(Formula(words="sum without a term", apply=partial(_sum, each)) for each in fewer)
            yield Formula(words="sum", apply=partial(_sum, found), uses=uses, others=others)


def _terms(at: int, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[_Make]:
    """Yields how terms of a shape are made of one value: all of it, a part of its features, or their sum.

    A program may move the channels of a value before it adds that to others, or after it scaled them.
    """
    if len(shape) <= len(wanted) and all(a in (1, b) for a, b in zip(shape[::-1], wanted[::-1], strict=False)):
        yield lambda reads: np.broadcast_to(reads[at], wanted)
    elif shape[: len(wanted)] == wanted:
        yield lambda reads: reads[at].reshape(*wanted, -1).sum(-1)
    elif shape[:-1] == wanted[:-1] and shape[-1] % wanted[-1] == 0:
        for part in range(shape[-1] // wanted[-1]):
            yield lambda reads, part=part: reads[at].reshape(*wanted[:-1], -1, wanted[-1])[..., part, :]
    if len(wanted) > 2 and shape == wanted[1:2]:
        yield lambda reads: np.broadcast_to(reads[at].reshape(-1, *[1] * (len(wanted) - 2)), wanted)
    for old, new in ((-1, 1), (1, -1)) if len(wanted) == len(shape) > 2 else ():
        axes = _moved(len(shape), old, new)
        if tuple(shape[axis] for axis in axes) == wanted:
            yield lambda reads, axes=axes: reads[at].transpose(axes)


def _moved(rank: int, old: int, new: int) -> tuple[int, ...]:
    """Returns the order of axes in which one of them is moved to another place."""
    axes = [*range(rank)]
    axes.insert(new % rank, axes.pop(old))
    return tuple(axes)


def _multiplied(one: _Make, other: _Make, function: Callable[[Array], Array], reads: Reads) -> Array:
    return one(reads) * function(other(reads))


def _sum(terms: list[_Term], reads: Reads) -> Array:
    return np.sum([each.make(reads) for each in terms], axis=0)


def _chosen(made: Array, value: Array) -> Iterator[tuple[int, ...]]:
    """Yields the numbers of terms whose sum is a value, the fewest first."""
    limit = _ALIKE * float(np.linalg.norm(value))
    for count in range(3):
        for few in itertools.combinations(range(len(made)), count):
            rest = value - made[list(few)].sum(0)
            fitting = np.flatnonzero(np.linalg.norm(made - rest, axis=1) <= limit)
            yield from ((*few, int(each)) for each in fitting if not few or each > few[-1])


def gathered(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formula of a value that has elements of what is read, in some order.

    Args:
        reads: What a step reads.
        value: What it computes.
    """
    if not reads:
        return
    every = np.concatenate([each.ravel() for each in reads])
    order = np.argsort(every, kind="stable")
    places = np.minimum(np.searchsorted(every[order], value.ravel()), every.size - 1)
    taken = order[places]
    if np.array_equal(every[taken], value.ravel()):
        ends = np.cumsum([each.size for each in reads])
        uses = tuple(map(int, np.unique(np.searchsorted(ends, taken, side="right"))))
        yield Formula(words="arrangement", apply=partial(_taken, taken), uses=uses)


def _taken(places: Array, reads: Reads) -> Array:
    return np.concatenate([each.ravel() for each in reads])[places]
