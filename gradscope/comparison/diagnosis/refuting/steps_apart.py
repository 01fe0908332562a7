"""`steps_apart` finds whether the values of a pair are two steps of one computation, which both programs take.

Such a pair differs, whatever else is right. One value is a function of the other where one program has an activation
function inside of a layer, and the other behind it (`functions_between`). Or one has a term that the other program adds
elsewhere: of the two biases of a gate, one program adds the sum in one layer, and the other each in a layer of its own;
the terms of a loss, one for each layer, are added up on the way or at the end. A lost term is no such term: what
reads it sends a gradient back to it in one of the programs alone. Or one value is the beginning or end of the other, as
where a causal convolution pads both sides and cuts off what looks ahead. Or one layer adds a bias or multiplies by a
number, which the other program does behind it. What reads the value might take no notice of either, as a softmax or a
norm does: then the gradient that arrives has no part along the bias, or the value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from operator import le, ne
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.functions_between import function_between, is_applied
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import coarser, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, gradient_family, key_of, printable, split_key
from gradscope.naming.wording import brief

#: The most axes of a value of which a part is looked for in every order of them.
_MOST_AXES: Final = 4

#: How large the sum of the products of a gradient is with a value, or with ones, of the root of the sum of their
#: squares, above which what reads the value takes notice of it: about 1, whatever the size, and more where all push one
#: way. Behind norms it was at most 3e-4 in float32, and 15 roundings in bfloat16.
_NOTICED: Final = 1e-3
_ROUNDINGS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsApart:
    """StepsApart stores what the values of a pair are of each other where they are two steps of a computation.

    Attributes:
        applied: Whether both programs are known to take both steps; None where that is not known.
        stages: What each value and its gradient are, in words, by their keys; without the gradients where those are a
            pair all the same.
        shifted: Whether something is added to one of the values, so that their gradients are a pair.
    """

    applied: bool | None
    stages: Mapping[str, str]
    shifted: bool = False


def steps_apart(
    dumps: Dumps,
    match: Match,
    tolerance: float | None,
    *,
    summed: Collection[str] = (),
    terms: Iterable[Match] = (),
    biases: Iterable[Match] = (),
) -> StepsApart | None:
    """Returns what the values of a pair are of each other; None where nothing shows that they are two steps.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        tolerance: The largest relative error; None where nothing is compared by one.
        summed: The keys of parameters that add up to one of the other dump, and of those.
        terms: The pairs that agree, of values that the pair is computed from.
        biases: The pairs that agree, of parameters of one axis.
    """
    if tolerance is None:
        return None
    if (stages := _of_part(dumps, match, tolerance) or _of_factor(dumps, match, tolerance)) is not None:
        return StepsApart(applied=True, stages=stages)
    if (found := function_between(dumps, match, tolerance)) is not None:
        return StepsApart(applied=is_applied(dumps, match, found), stages=dict(found.stages(match)))
    words = _added_elsewhere(dumps, match, tolerance, summed=summed, terms=terms, biases=biases)
    if not words:
        return None
    return StepsApart(applied=True, stages=dict.fromkeys((match.ref, *match.recipe.keys), words), shifted=True)


def _added_elsewhere(
    dumps: Dumps,
    match: Match,
    tolerance: float,
    *,
    summed: Collection[str],
    terms: Iterable[Match],
    biases: Iterable[Match],
) -> str:
    """Returns what one value of a pair has that the other program adds elsewhere, in words; "" where there is none."""
    if summed and _differ_by_biases(dumps, match, summed, tolerance):
        return "one of two biases is added elsewhere"
    bias = _bias_between(dumps, match, biases, tolerance)
    term = bias or next((each for each in terms if _differ_by(dumps, match, each, tolerance)), None)
    return "" if term is None else f"`{printable(split_key(term.ref)[1])}` is added elsewhere"


def _of_part(dumps: Dumps, match: Match, tolerance: float) -> Mapping[str, str] | None:
    """Returns what two values and their gradients are, of which one is the beginning or end of the other; else None.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        tolerance: The largest relative error.
    """
    one, other = FloatTensors(dumps.ref).tensor(match.ref), FloatTensors(dumps.cand).tensor(match.cand)
    if len(match.recipe.keys) > 1 or one is None or other is None or one.ndim != other.ndim or one.size == other.size:
        return None
    (whole, array), (part, cut) = sorted(((match.ref, one), (match.cand, other)), key=lambda each: -each[1].size)
    # Half of a value or less is rather one of those that were joined in it, as the directions of a recurrent layer.
    if 2 * cut.size <= array.size or not any(_is_part(each, array, tolerance) for each in _turned(cut, array.shape)):
        return None
    words = {
        part: f"a part of `{printable(split_key(whole)[1])}`",
        whole: f"`{printable(split_key(part)[1])}` is a part",
    }
    return words | {_gradient_of(key): f"its value is {what}" for key, what in words.items()}


def _of_factor(dumps: Dumps, match: Match, tolerance: float) -> Mapping[str, str] | None:
    """Returns what two values and their gradients are where one is a multiple of the other in both programs; else None.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        tolerance: The largest relative error.
    """
    values = _both(dumps, match)
    gradients = None if values is None else _both(dumps, _of_gradients(match))
    if values is None or gradients is None or not (np.any(values[1]) and np.any(gradients[0])):
        return None
    (one, other), (slope, other_slope) = values, gradients
    factor = float(np.vdot(one, other) / np.vdot(other, other))
    noticed = _is_noticed(dumps, match, one * slope)
    multiple = _is_close(factor * other, one, tolerance) and _is_close(factor * slope, other_slope, tolerance)
    if not (noticed and multiple):
        return None
    size = brief(max(factor, 1 / factor, key=abs))
    words = f"one program multiplies by {size} within the layer, and the other outside of it"
    keys = (match.ref, *match.recipe.keys)
    return dict.fromkeys((*keys, *map(_gradient_of, keys)), words)


def _bias_between(dumps: Dumps, match: Match, biases: Iterable[Match], tolerance: float) -> Match | None:
    """Returns the bias that only one value of a pair has, and that both programs add; None where there is none.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        biases: Pairs of parameters of one axis, which agree.
        tolerance: The largest relative error.
    """
    values = _both(dumps, match)
    gradients = None if values is None else _both(dumps, _of_gradients(match))
    if values is None or gradients is None:
        return None
    one, other = values
    for axis, size in enumerate(one.shape):
        others = tuple(each for each in range(one.ndim) if each != axis)
        shift, arriving = (one - other).mean(others), [each.sum(others) for each in gradients]
        noticed = all(_is_noticed(dumps, match, each, others) for each in gradients)
        spread = np.expand_dims(shift, others)
        if size < 2 or not noticed or not _is_close(other + spread, one, tolerance):
            continue
        for bias in biases:
            if dumps.ref.entry(bias.ref).shape == (size,) and _is_added(dumps, bias, shift, arriving, tolerance):
                return bias
    return None


def _is_added(dumps: Dumps, bias: Match, shift: Array, arriving: Sequence[Array], tolerance: float) -> bool:
    """Returns whether a bias is what two values differ by, and has the gradient that arrives in both programs."""
    known, slopes = _both(dumps, bias), _both(dumps, _of_gradients(bias))
    if known is None or slopes is None:
        return False
    added = _is_close(known[0], shift, tolerance) or _is_close(known[0], -shift, tolerance)
    return added and all(_is_close(each, slope, tolerance) for each, slope in zip(arriving, slopes, strict=True))


def _is_noticed(dumps: Dumps, match: Match, products: Array, axes: tuple[int, ...] | None = None) -> bool:
    """Returns whether the sums of the products of a gradient, of a pair of values, are more than its rounding."""
    rounding = machine_epsilon(coarser(dumps.ref.entry(match.ref).dtype, dumps.cand.entry(match.cand).dtype))
    least = max(_NOTICED, _ROUNDINGS * rounding)
    return bool(np.linalg.norm(products.sum(axes)) > least * np.linalg.norm(products))


def _both(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both tensors of a pair in the layout of the reference; None where there are none of one shape."""
    one, other = FloatTensors(dumps.ref).tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    return None if one is None or other is None or one.shape != other.shape else (one, other)


def _is_close(found: Array, expected: Array, tolerance: float) -> bool:
    return bool(np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected))


def _turned(array: Array, shape: Shape) -> Iterator[Array]:
    """Yields an array in the orders of axes in which it has a shape along all axes but one, and is shorter there."""
    for axes in permutations(range(array.ndim)) if array.ndim <= _MOST_AXES else ():
        turned = array.transpose(axes)
        if turned.size and sum(map(ne, turned.shape, shape)) == 1 and all(map(le, turned.shape, shape)):
            yield turned


def _is_part(part: Array, whole: Array, tolerance: float) -> bool:
    """Returns whether an array is the beginning or the end of another along the axis along which that is longer."""
    limit = tolerance * float(np.linalg.norm(part))
    first, last = tuple(map(slice, part.shape)), tuple(slice(-size, None) for size in part.shape)
    return any(float(np.linalg.norm(whole[each] - part)) <= limit for each in (first, last)) and limit > 0


def _differ_by(dumps: Dumps, match: Match, term: Match, tolerance: float) -> bool:
    """Returns whether the values of a pair differ by a term to which both programs send the gradient of its sum.

    Args:
        dumps: The dumps of the pairs.
        match: A pair of activations.
        term: A pair of activations that agree.
        tolerance: The largest relative error.
    """
    if dumps.ref.entry(match.ref).shape != dumps.ref.entry(term.ref).shape:
        return False
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
    one, other, shift = ref.tensor(match.ref), cand.made(match.recipe), ref.tensor(term.ref)
    if one is None or other is None or shift is None or one.shape != other.shape:
        return False
    limit = tolerance * float(np.linalg.norm(one))
    if not limit < np.linalg.norm(shift) or min(np.linalg.norm(one - other - s * shift) for s in (1, -1)) > limit:
        return False
    gradients = [
        (ref.tensor(_gradient_of(match.ref)), ref.tensor(_gradient_of(term.ref))),
        (cand.made(_of_gradients(match).recipe), cand.made(_of_gradients(term).recipe)),
    ]
    return all(
        whole is not None
        and part is not None
        and np.any(whole)
        and np.linalg.norm(whole - part) <= tolerance * np.linalg.norm(whole)
        for whole, part in gradients
    )


def _of_gradients(match: Match) -> Match:
    """Returns the pair of the gradients of a pair."""
    recipe = replace(match.recipe, keys=tuple(map(_gradient_of, match.recipe.keys)))
    return replace(match, ref=_gradient_of(match.ref), recipe=recipe)


def _gradient_of(key: str) -> str:
    family, name = split_key(key)
    return key_of(gradient_family(family) or family, name)


def _differ_by_biases(dumps: Dumps, match: Match, summed: Collection[str], tolerance: float) -> bool:
    """Returns whether the values of a pair differ by the biases of their layers that are terms or sums of each other.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        summed: The keys of parameters that add up to one of the other dump, and of those.
        tolerance: The largest relative error.
    """
    if not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return False
    one, other = _biases(dumps.ref, match.ref, summed), [_biases(dumps.cand, key, summed) for key in match.recipe.keys]
    value, found = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if value.shape != found.shape or not np.any(apart := one - match.recipe.made_of(other)):
        return False
    return bool(np.linalg.norm(value - found - apart) <= tolerance * np.linalg.norm(value))


def _biases(source: DumpSource, key: str, summed: Collection[str]) -> Array:
    """Returns the sum of the biases of the layer that computes a value, in the value's shape."""
    shape, name = source.entry(key).shape, split_key(key)[1]
    params = [layer.params for layer in source.manifest.layers if name in layer.outputs][-1:]  # the innermost is last
    keys = (key_of(PARAM, each) for names in params for each in names)
    biases = (source.array(each) for each in keys if each in summed and source.entry(each).shape == shape[-1:])
    return sum((np.broadcast_to(each, shape) for each in biases), start=np.zeros(shape))
