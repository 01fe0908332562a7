"""`steps_apart` finds whether the values of a pair are two steps of one computation, which both programs take.

Such a pair differs, whatever else is right. One value is a function of the other where one program has an activation
function inside of a layer, and the other behind it (`functions_between`). Or one has a term that the other program adds
elsewhere: of the two biases of a gate, one program adds the sum in one layer, and the other each in a layer of its own;
the terms of a loss, one for each layer, are added up on the way or at the end. Or one is the sum of a residual
connection, and the other its branch (`residuals_between`). A lost term is no such term: what
reads it sends a gradient back to it in one of the programs alone. Or one value is the beginning or end of the other, as
where a causal convolution pads both sides and cuts off what looks ahead. Or one layer adds a bias or multiplies by a
number, or normalises (`norms_between`), which the other program does behind it. What reads the value might take no
notice of a bias or a number, as a softmax or a norm does: then the gradient that arrives has no part along the bias, or
the value. The last values of a residual stream may have a factor of which a norm takes no notice, and those before them
have it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from operator import le, ne
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.biases_between import bias_between, differ_by_biases
from gradscope.comparison.diagnosis.refuting.apart.dense_readers import read_multiple
from gradscope.comparison.diagnosis.refuting.apart.functions_between import (
    FunctionBetween,
    function_between,
    is_applied,
)
from gradscope.comparison.diagnosis.refuting.apart.norms_between import norm_between
from gradscope.comparison.diagnosis.refuting.apart.pair_values import (
    both,
    is_close,
    is_noticed,
    of_gradients,
    with_gradients,
)
from gradscope.comparison.diagnosis.refuting.apart.residuals_between import residual_between
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import gradient_key, printable, split_key
from gradscope.naming.wording import brief

#: The relative error up to which a layer reads a multiple of a value.
_PARALLEL: Final = 1e-3

#: How many times less than without it a factor leaves of what it explains.
_BY_FAR: Final = 4

#: The most axes of a value of which a part is looked for in every order of them.
_MOST_AXES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsApart:
    """StepsApart stores what the values of a pair are of each other where they are two steps of a computation.

    Attributes:
        applied: Whether both programs are known to take both steps; None where that is not known.
        stages: What each value and its gradient are, in words, by their keys; without the gradients where those are a
            pair all the same.
        shifted: Whether something is added to one of the values, so that their gradients are a pair.
        factor: How many times the candidate's value the reference's is; None where it is no multiple.
        function: The function that one of the values is of the other; None where it is none.
    """

    applied: bool | None
    stages: Mapping[str, str]
    shifted: bool = False
    factor: float | None = None
    function: FunctionBetween | None = None


def steps_apart(
    dumps: Dumps,
    match: Match,
    tolerance: float | None,
    *,
    summed: Collection[str] = (),
    terms: Iterable[Match] = (),
    totals: Iterable[Match] = (),
    biases: Iterable[Match] = (),
    factors: Iterable[float] = (),
    agrees_behind: Callable[[], bool] = lambda: False,
) -> StepsApart | None:
    """Returns what the values of a pair are of each other; None where nothing shows that they are two steps.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        tolerance: The largest relative error; None where nothing is compared by one.
        summed: The keys of parameters that add up to one of the other dump, and of those.
        terms: The pairs that agree, of values that the pair is computed from.
        totals: The pairs of two steps that differ by such a term, of which one is its sum with the other.
        biases: The pairs that agree, of parameters of one axis.
        factors: The factors of the pairs of two steps that the values are computed from.
        agrees_behind: Returns whether all that is computed next from either value agrees.
    """
    if tolerance is None:
        return None
    stages = _of_part(dumps, match, tolerance) or norm_between(dumps, match, tolerance, biases)
    if stages is not None:
        return StepsApart(applied=True, stages=stages)
    if (multiple := _of_factor(dumps, match, tolerance, factors, agrees_behind)) is not None:
        return multiple
    if (function := function_between(dumps, match, tolerance)) is not None:
        applied = is_applied(dumps, match, function)
        if applied is None and _have_gradients(dumps, match) and agrees_behind():
            applied = True
        return StepsApart(applied=applied, stages=function.stages(match), function=function)
    words = _added_elsewhere(dumps, match, tolerance, summed=summed, terms=terms, totals=totals, biases=biases)
    if words:
        return StepsApart(applied=True, stages=dict.fromkeys((match.ref, *match.recipe.keys), words), shifted=True)
    found = residual_between(dumps, match, tolerance)
    stages = {} if found is None else found.stages(match)
    return None if found is None else StepsApart(applied=True, stages=stages, shifted=found.shifted)


def _have_gradients(dumps: Dumps, match: Match) -> bool:
    """Returns whether gradients arrive at both values of a pair."""
    gradients = both(dumps, of_gradients(match))
    return gradients is not None and all(map(np.any, gradients))


def _added_elsewhere(
    dumps: Dumps,
    match: Match,
    tolerance: float,
    *,
    summed: Collection[str],
    terms: Iterable[Match],
    totals: Iterable[Match],
    biases: Iterable[Match],
) -> str:
    """Returns what one value of a pair has that the other program adds elsewhere, in words; "" where there is none."""
    if summed and differ_by_biases(dumps, match, summed, tolerance):
        return "one of two biases is added elsewhere"
    bias = bias_between(dumps, match, biases, tolerance)
    term = bias or next((each for each in terms if _differ_by(dumps, match, each, tolerance)), None)
    term = term or next((each for each in totals if _differ_by_total(dumps, match, each, tolerance)), None)
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
        whole: f"what `{printable(split_key(part)[1])}` is a part of",
    }
    return with_gradients(words)


def _of_factor(
    dumps: Dumps, match: Match, tolerance: float, factors: Iterable[float], agrees_behind: Callable[[], bool]
) -> StepsApart | None:
    """Returns what two values and their gradients are where one is a multiple of the other in both programs; else None.

    What reads the values takes notice of the factor, or they have it from what they are computed from, as throughout a
    residual stream. Where something behind is wrong, so that other gradients arrive, what is computed next agrees.

    Args:
        dumps: The dumps of the pair.
        match: A pair of activations.
        tolerance: The largest relative error.
        factors: The factors of the pairs that the values are computed from.
        agrees_behind: As above.
    """
    values = both(dumps, match)
    gradients = None if values is None else both(dumps, of_gradients(match))
    if values is None or gradients is None or not (np.any(values[1]) and np.any(gradients[0])):
        return None
    (one, other), (slope, other_slope) = values, gradients
    factor = float(np.vdot(one, other) / np.vdot(other, other))
    if abs(factor - 1) <= _BY_FAR * tolerance:  # with and without it, gradients and what is computed next may agree
        return None
    inherited = any(abs(each - factor) <= tolerance * abs(factor) for each in factors)
    if not is_close(factor * other, one, tolerance):
        return None
    noticed = is_noticed(dumps, match, one * slope)
    if is_close(factor * slope, other_slope, tolerance):
        multiple = inherited or noticed
    else:
        both_notice = noticed and is_noticed(dumps, match, other * other_slope)
        multiple = (
            both_notice
            and not is_close(slope, other_slope, tolerance)
            and (agrees_behind() or _is_multiplied(dumps, match, factor))
        )
    if not multiple:
        return None
    size = brief(max(factor, 1 / factor, key=abs))
    words = f"one program multiplies by {size} within the layer, and the other outside of it"
    keys = (match.ref, *match.recipe.keys)
    return StepsApart(applied=True, stages=dict.fromkeys((*keys, *map(gradient_key, keys)), words), factor=factor)


def _is_multiplied(dumps: Dumps, match: Match, factor: float) -> bool:
    """Returns whether dense layers read the values of a pair as if the candidate's were multiplied by a factor.

    Whatever such a layer makes of it then, the gradient of its kernel shows what it reads.
    """
    if len(match.recipe.keys) > 1:
        return False
    one, other = read_multiple(dumps.ref, match.ref), read_multiple(dumps.cand, match.cand)
    if one is None or other is None:
        return False
    left, apart = abs(other - factor * one), abs(other - one)  # with the factor, and without it
    return left <= _PARALLEL * abs(other) and _BY_FAR * left <= apart > 0


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


def _differ_by_total(dumps: Dumps, match: Match, total: Match, tolerance: float) -> bool:
    """Returns whether the values of a pair differ by a sum that one program has, and the other does not before its end.

    Such a program adds up skips on the way, each in its layer. The gradient of the sum arrives at the values of the
    pair in both programs, and at the sum so far in that which has it.

    Args:
        dumps: The dumps of the pairs.
        match: A pair of activations.
        total: A pair of which one value is the sum so far.
        tolerance: The largest relative error.
    """
    values, gradients = both(dumps, match), both(dumps, of_gradients(match))
    sums, slopes = both(dumps, total), both(dumps, of_gradients(total))
    if values is None or gradients is None or sums is None or slopes is None or sums[0].shape != values[0].shape:
        return False
    (one, other), (slope, other_slope) = values, gradients
    if not (np.any(slope) and is_close(other_slope, slope, tolerance)):
        return False
    limit = tolerance * float(np.linalg.norm(one))
    return any(
        np.linalg.norm(one - other - sign * added) <= limit < np.linalg.norm(added)
        and is_close(arriving, slope, tolerance)
        for added, arriving, sign in zip(sums, slopes, (1, -1), strict=True)
    )


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
        (ref.tensor(gradient_key(match.ref)), ref.tensor(gradient_key(term.ref))),
        (cand.made(of_gradients(match).recipe), cand.made(of_gradients(term).recipe)),
    ]
    return all(
        whole is not None
        and part is not None
        and np.any(whole)
        and np.linalg.norm(whole - part) <= tolerance * np.linalg.norm(whole)
        for whole, part in gradients
    )
