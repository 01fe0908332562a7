"""`softmaxes` finds the formula of a value that is a softmax of what is read, with some of its elements masked.

`softmaxes_of_products` finds that of a step that computes the scores of an attention, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.replaying.contractions import contractions
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, makes

#: The share of its row below which an element is masked.
_MASKED: Final = 1e-12

#: What masked elements are before the softmax.
_LOW: Final = -1e30


def softmaxes(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formula of a softmax.

    Args:
        reads: What a step reads.
        value: What it computes.
    """
    kept = _kept(value)
    if kept is None:
        return
    for at, read in enumerate(reads):
        for axis in _axes(value) if read.shape == value.shape else ():
            if makes(_softmax(read, kept, axis), value):
                words = f"softmax over axis {axis}"
                own = _formula(words if kept.all() else f"masked {words}", at, kept, axis)
                yield replace(own, uses=(at,), others=tuple(_others(at, kept, axis)))


def softmaxes_of_products(reads: Reads, value: Array) -> Iterator[Formula]:
    """Yields the formula of a softmax of a product, where one step computes scores and their shares.

    Args:
        reads: What a step reads.
        value: What it computes.
    """
    kept = _kept(value)
    if kept is None:
        return
    logarithms = np.log(np.where(kept, value, 1))
    for axis in _axes(value):
        if not makes(value.sum(axis), np.ones_like(value.sum(axis))):
            continue

        def centred(scores: Array, axis: int = axis) -> Array:
            return np.where(kept, scores - scores.mean(axis, keepdims=True, where=kept), 0)

        for product in contractions(reads, centred(logarithms), centred):
            for shares in softmaxes([product.apply(reads).reshape(value.shape)], value):
                own = _of(product, shares, value.shape)
                changed = [_of(other, shares, value.shape) for other in product.others]
                others = [*changed, *(_of(product, other, value.shape) for other in shares.others)]
                yield replace(own, uses=product.uses, others=tuple(others))


def _kept(value: Array) -> Array | None:
    """Returns which elements of a softmax are not masked; None where a value cannot be one."""
    return value > _MASKED if value.ndim > 1 and value.min() >= 0 else None


def _axes(value: Array) -> list[int]:
    """Returns the axes over which a value may be a softmax."""
    return [axis for axis, size in enumerate(value.shape) if size > 1]


def _of(product: Formula, shares: Formula, shape: tuple[int, ...]) -> Formula:
    """Returns the formula of a softmax of a product."""
    return Formula(
        words=f"{shares.words} of the {product.words}",
        apply=lambda reads: shares.apply([product.apply(reads).reshape(shape)]),
    )


def _softmax(read: Array, kept: Array, axis: int) -> Array:
    shown = np.where(kept, read, _LOW)
    shares = np.exp(shown - shown.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def _formula(words: str, at: int, kept: Array, axis: int) -> Formula:
    return Formula(words=words, apply=lambda reads: _softmax(reads[at], kept, axis))


def _others(at: int, kept: Array, axis: int) -> Iterator[Formula]:
    """Yields the formulas that may be in its place: over another axis, with another mask, or with none."""
    for each in (each for each in _axes(kept) if each != axis):
        yield _formula(f"softmax over axis {each}", at, kept, each)
    if not kept.all():
        yield _formula("softmax without a mask", at, np.ones_like(kept), axis)
    for one, two in itertools.combinations(range(kept.ndim), 2):
        if kept.shape[one] == kept.shape[two] and not np.array_equal(turned := kept.swapaxes(one, two), kept):
            yield _formula("softmax with its mask transposed", at, turned, axis)
    places = np.indices(kept.shape, sparse=True)
    for each in (each for each in range(kept.ndim) if kept.shape[each] == kept.shape[axis] and each != axis):
        for causal in (places[axis] <= places[each], places[axis] >= places[each]):
            if not np.array_equal(mask := kept & causal, kept):
                yield _formula("softmax with a causal mask", at, mask, axis)
