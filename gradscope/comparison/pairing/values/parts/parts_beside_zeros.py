"""`parts_beside_zeros` matches biases with a joined one that has zeros in the place of another.

The keys of an attention need no bias: it adds the same number to all scores of a query, and a softmax takes no notice.
Whisper and BEiT have none, and a port that joins query, key and value in one dense layer has zeros there, which stay
zeros as no gradient but rounding arrives at them. Zeros with a gradient are a bias that the reference lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import permutations
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, ReshapeEach, Split, Transpose
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values.parts.part_candidates import constant_of
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, gradient_key

#: The most axes of a bias, which are what is joined, heads, and features, and its most elements: kernels are not read.
_MOST_AXES: Final = 3
_MOST_ELEMENTS: Final = 1 << 18

#: The largest number of times that a joined bias has the elements of its parts which are no zeros: one of three is.
_LARGEST: Final = 3


def parts_beside_zeros(dumps: Dumps, ref: Sequence[str], cand: Sequence[str]) -> Iterator[Match]:
    """Yields matches of biases with their parts of the candidate's joined ones, whose other parts are zero.

    Args:
        dumps: The dumps.
        ref: The reference's stored tensors without a counterpart.
        cand: The candidate's.
    """
    free = {key: math.prod(dumps.ref.entry(key).shape) for key in ref if _is_bias(dumps.ref, key)}
    read: dict[str, Array] = {}
    for key in (key for key in cand if _is_bias(dumps.cand, key)):
        size = math.prod(dumps.cand.entry(key).shape)
        smaller = [name for name, own in free.items() if own < size]
        if size > _LARGEST * sum(free[name] for name in smaller) or constant_of(dumps.cand, key) is not None:
            continue  # the parts are too small, and it is not read
        joined = wide_values(dumps.cand.array(key))
        if joined.all():
            continue
        for name in (name for name in smaller if name not in read):
            read[name] = wide_values(dumps.ref.array(name))
        for match in _matches(dumps, key, joined, {name: read[name] for name in smaller}):
            del free[match.ref]
            yield match


def _is_bias(source: DumpSource, key: str) -> bool:
    entry = source.entry(key)
    small = 0 < len(entry.shape) <= _MOST_AXES and math.prod(entry.shape) <= _MOST_ELEMENTS
    return small and entry.family == PARAM and dtype_class(entry.dtype) == "float"


def _matches(dumps: Dumps, key: str, joined: Array, singles: Mapping[str, Array]) -> list[Match]:
    """Returns the matches of the parts of one bias; none where some of it is neither a part nor zeros."""
    for order in permutations(range(joined.ndim)):
        parts = _parts(dumps, joined.transpose(order).reshape(-1), singles)
        if parts and _has_no_gradient(dumps, key, order, parts):
            ordered: tuple[RecipeStep, ...] = (Transpose(order),) if order != (*range(joined.ndim),) else ()
            flat: tuple[RecipeStep, ...] = (Reshape((-1,)),) if joined.ndim > 1 else ()
            split = Split(0, tuple(size for _, size in parts))
            shapes = tuple(dumps.ref.entry(name).shape if name else (size,) for name, size in parts)
            own: tuple[RecipeStep, ...] = (ReshapeEach(shapes),) if any(len(shape) > 1 for shape in shapes) else ()
            recipes = (Recipe(keys=(key,), steps=(*ordered, *flat, split, *own), part=at) for at in range(len(parts)))
            named = ((name, recipe) for (name, _), recipe in zip(parts, recipes, strict=True) if name)
            return [Match(ref=name, recipe=recipe, matched_by="fingerprint") for name, recipe in named]
    return []


def _parts(dumps: Dumps, joined: Array, singles: Mapping[str, Array]) -> list[tuple[str, int]]:
    """Returns the parts of a bias with their sizes, those of zeros without a name; none where some of it is neither."""
    found: list[tuple[str, int]] = []
    start = 0
    while start < joined.size:
        rest, taken = joined[start:], {name for name, _ in found}
        zeros = rest.size if not rest.any() else int(np.flatnonzero(rest)[0])
        fitting = (
            (name, single.size)
            for name, single in singles.items()
            if name not in taken and _is_first(rest, single.reshape(-1), _tolerance(dumps, PARAM, name))
        )
        part = next(fitting, ("", zeros))
        if not part[1]:
            return []
        found.append(part)
        start += part[1]
    return found if {bool(name) for name, _ in found} == {True, False} else []


def _is_first(joined: Array, single: Array, tolerance: float) -> bool:
    """Returns whether what is joined begins with a part that is not zero."""
    if not single.any() or single.size > joined.size:
        return False
    # The first elements rule out almost all.
    near = abs(joined[0] - single[0]) <= tolerance * float(np.linalg.norm(single))
    return near and relative_error(joined[: single.size], single) <= tolerance


def _tolerance(dumps: Dumps, family: str, name: str) -> float:
    dtype = dumps.ref.entry(name).dtype
    return dumps.tolerance(family, dtype, dtype)


def _has_no_gradient(dumps: Dumps, key: str, order: tuple[int, ...], parts: Sequence[tuple[str, int]]) -> bool:
    """Returns whether the gradient of a bias is rounding alone where it has zeros; True where there is no gradient."""
    gradient = gradient_key(key)
    if not dumps.cand.has_tensor(gradient):
        return True
    narrow = (layer.narrowest for layer in dumps.cand.manifest.layers if layer.narrowest is not None)
    dtype = reduce(coarser, narrow, dumps.cand.entry(gradient).dtype)
    values = wide_values(dumps.cand.array(gradient)).transpose(order).reshape(-1)
    ends = np.cumsum([size for _, size in parts])
    zeros = [values[end - size : end] for (name, size), end in zip(parts, ends, strict=True) if not name]
    limit = dumps.tolerance(PARAM_GRAD, dtype, dtype) * float(np.linalg.norm(values))
    return math.hypot(*(float(np.linalg.norm(each)) for each in zeros)) <= limit
