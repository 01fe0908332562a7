"""`contractions` finds the formula of a value that is a product of two others, summed over axes that both have.

The scores of an attention are one, and its context is. Axes may be split or joined, as those of heads, and which of
several axes of one size is which is tried. The product may have a factor, and a bias.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, makes, rearrangements

#: The largest number of products of one contraction, and of all that are tried, of which each counts as a least number.
_MOST_PRODUCTS: Final = 1 << 22
_MOST_TRIED: Final = 1 << 26
_LEAST: Final = 1 << 16

#: The largest number of axes of a factor or a product.
_MOST_AXES: Final = 5

#: The most triples of shapes whose numbers of axes are kept: the layers of a network have the same few.
_MOST_SHAPES: Final = 4096

#: The relative error up to which two factors are one.
_SAME_FACTOR: Final = 1e-3

_Shape: TypeAlias = tuple[int, ...]


class _Axes(NamedTuple):
    """_Axes has the shapes of two factors and of their product, and the axes of each by number."""

    shapes: tuple[_Shape, _Shape, _Shape]
    numbers: tuple[_Shape, _Shape, _Shape]

    @property
    def sizes(self) -> dict[int, int]:
        """The size of each axis."""
        pairs = (zip(*each, strict=True) for each in zip(self.numbers, self.shapes, strict=True))
        return dict(itertools.chain.from_iterable(pairs))

    def product(self, one: Array, other: Array) -> Array:
        """Returns the product."""
        first, second, result = map(list, self.numbers)
        return np.einsum(one.reshape(self.shapes[0]), first, other.reshape(self.shapes[1]), second, result)


class _Contraction(NamedTuple):
    """_Contraction has what is multiplied, by its positions, and what is applied to the product."""

    positions: tuple[int, int]
    axes: _Axes
    factor: float
    bias: int | None

    def value(
        self, reads: Reads, *, factor: float | None = None, biased: bool = True, order: Array | None = None
    ) -> Array:
        """Returns the value, or another with one thing changed."""
        found = (self.factor if factor is None else factor) * self.axes.product(*(reads[at] for at in self.positions))
        found = found.ravel() if order is None else found.ravel()[order]
        if self.bias is None or not biased:
            return found
        bias = reads[self.bias].ravel()
        return (found.reshape(-1, bias.size) + bias).ravel()

    def others(self) -> Iterator[Formula]:
        """Yields the formulas that may be in its place."""

        def other(words: str, **changed: object) -> Formula:
            return Formula(words=words, apply=lambda reads: self.value(reads, **changed))  # type: ignore[arg-type]

        if self.bias is not None:
            yield other("product without bias", biased=False)
        sizes, result = self.axes.sizes, self.axes.numbers[2]
        summed = math.prod(size for number, size in sizes.items() if number not in result)
        kept = sorted({sizes[number] for number in result})
        for width in dict.fromkeys((summed, *(summed * each for each in kept))):
            for factor in (1.0, width**-0.5, 1 / width):
                if not math.isclose(factor, self.factor, rel_tol=_SAME_FACTOR):
                    yield other(_words(factor), factor=factor)
        for order in rearrangements(self.axes.shapes[2]):
            joined = other("product with its axes joined in another order", order=order)
            yield replace(joined, arranges=True)


def contractions(reads: Reads, value: Array, centred: Callable[[Array], Array] = np.copy) -> Iterator[Formula]:
    """Yields the formula of a product.

    Args:
        reads: What a step reads.
        value: What it computes.
        centred: Leaves out of a value what is not known of it, such as what a softmax adds to a row.
    """
    left = _MOST_TRIED
    for positions, axes, bias in _tried(reads, value):
        left -= max(_LEAST, math.prod(axes.sizes.values()))
        if left < 0:
            return
        expected = value.ravel()
        if bias is not None:
            expected = (value.reshape(-1, reads[bias].size) - reads[bias].ravel()).ravel()
        made = centred(axes.product(*(reads[at] for at in positions)).reshape(value.shape)).ravel()
        square = float(made @ made)
        factor = float(made @ expected) / square if square else 0.0
        if factor and makes(factor * made, expected):
            found = _Contraction(positions, axes, factor, bias)
            uses = (*positions, *(() if bias is None else (bias,)))
            yield Formula(words=_words(factor), apply=found.value, uses=uses, others=tuple(found.others()))


def _words(factor: float) -> str:
    """Returns a product with a factor in words, which most often is that of a number of features, or of its root."""
    if math.isclose(factor, 1, rel_tol=_SAME_FACTOR):
        return "product"
    for power, words in ((1, "product / {}"), (2, "product / sqrt({})")):
        whole = round(abs(factor) ** -power)
        if whole > 1 and math.isclose(whole, factor**-power, rel_tol=_SAME_FACTOR):
            return words.format(whole)
    return f"product * {factor:.3g}"


def _tried(reads: Reads, value: Array) -> Iterator[tuple[tuple[int, int], _Axes, int | None]]:
    """Yields pairs of what is read, with the axes that the product of each may have, and the bias it may have."""
    large = [at for at, each in enumerate(reads) if each.ndim > 1]
    biases = [at for at, each in enumerate(reads) if each.ndim < 3 and _ends_with(value.shape, each.size)]
    for bias in (*biases, None):
        for positions in itertools.combinations((at for at in large if at != bias), 2):
            one, other = (reads[at].shape for at in positions)
            sizes = {*one, *other, *value.shape}
            for shapes in itertools.product(_split(one, sizes), _split(other, sizes), _split(value.shape, sizes)):
                yield from ((positions, _Axes(shapes, numbers), bias) for numbers in _numbered(*shapes))


def _ends_with(shape: _Shape, size: int) -> bool:
    return size > 1 and size in itertools.accumulate(reversed(shape), lambda one, other: one * other)


def _split(shape: _Shape, sizes: set[int]) -> Iterator[_Shape]:
    """Yields a shape without axes of one element, and with one axis split into two that others have."""
    yield (plain := tuple(size for size in shape if size > 1))
    for axis, size in enumerate(plain):
        for part in sorted(each for each in sizes if 1 < each < size and size % each == 0):
            for pair in dict.fromkeys(((part, size // part), (size // part, part))):
                yield (*plain[:axis], *pair, *plain[axis + 1 :])


@lru_cache(_MOST_SHAPES)
def _numbered(one: _Shape, other: _Shape, result: _Shape) -> Sequence[tuple[_Shape, _Shape, _Shape]]:
    """Returns numbers of axes, equal for those that belong together: each of the product belongs to one of a factor."""
    found: list[tuple[_Shape, _Shape, _Shape]] = []
    if max(map(len, (one, other, result))) > _MOST_AXES:
        return found
    own = tuple(range(len(result)))
    for first in _assigned(one, dict(enumerate(result)), len(result)):
        summed = {number: one[axis] for axis, number in enumerate(first) if number >= len(result)}
        for second in _assigned(other, dict(enumerate(result)) | summed, None):
            known = {*first, *second}
            all_summed = summed.keys() <= set(second)
            products = math.prod((dict(enumerate(result)) | summed).values())
            if summed and all_summed and known.issuperset(own) and products <= _MOST_PRODUCTS:
                found.append((first, second, own))
    return found


def _assigned(shape: _Shape, known: dict[int, int], fresh: int | None) -> Iterator[_Shape]:
    """Yields the numbers that axes may have: those of known axes of their sizes, or fresh ones, each once.

    Args:
        shape: The sizes of the axes.
        known: The sizes of the known axes, by number.
        fresh: The first number of a fresh axis; None where there are no fresh ones.
    """
    if not shape:
        yield ()
        return
    for number in [number for number, size in known.items() if size == shape[0]]:
        rest = {each: size for each, size in known.items() if each != number}
        yield from ((number, *each) for each in _assigned(shape[1:], rest, fresh))
    if fresh is not None:
        yield from ((fresh, *each) for each in _assigned(shape[1:], known, fresh + 1))
