"""`with_example_order` recognises a batch whose examples are in another order, as a data loader that shuffles makes it.

The inputs prove the order: the slices of their leading axis are exactly the same in both dumps, and those of all
inputs that differ have moved alike. Where the inputs agree, a program may take the examples in another order all the
same, and then the first value that differs proves it, and its gradient where examples are equal. That order is used
where the losses agree, or some value agrees in neither order, so that a program which takes the inputs in another order
than the labels has them as they are.

A tensor that is computed from the batch is then read in that order where it agrees better so than as it is stored; a
sum over the batch, as the gradient of a parameter, has no order. Its axis of examples is found by its size, of which
the number of examples is a divisor: the leading one, or another (time before examples), or one that is merged with
time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.example_orders import Order, examples_of, order_of_examples
from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.layout.recipes import ExampleOrder
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import comparable
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    EXAMPLE_GRAD,
    INPUT,
    INPUT_GRAD,
    TERM,
    key_of,
    split_key,
)

#: The families of tensors that may have an axis of examples.
_OF_BATCHES: Final = (INPUT, INPUT_GRAD, ACTIVATION, ACTIVATION_GRAD, AUX, EXAMPLE_GRAD, TERM)


#: The relative error of losses that agree.
_SAME_LOSS: Final = 1e-5


def order_of_batch(dumps: Dumps, matches: Sequence[Match]) -> Order:
    """Returns the index in the candidate of each example of the reference, by the inputs; empty where it is the same.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, whose layouts need not be known.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    search = LayoutSearch(dumps)
    return _order(dumps, [_laid_out(dumps, search, match) for match in matches if split_key(match.ref)[0] == INPUT])


def _laid_out(dumps: Dumps, search: LayoutSearch, match: Match) -> Match:
    """Returns the match of an input in the layout that its values show."""
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if not (match.recipe.plain and _may_differ(dumps, match) and comparable(one.dtype, other.dtype)):
        return match
    steps = next((each.steps(other.shape) for each in search.agreeing(match.ref, match.cand)), ())
    return replace(match, recipe=replace(match.recipe, steps=steps))


def with_example_order(dumps: Dumps, matches: Sequence[Match], order: Order) -> tuple[Match, ...]:
    """Returns the matches with the order of the examples, where that is another.

    Args:
        dumps: The dumps of the matches.
        matches: The matches, with their layouts.
        order: The order that the inputs prove, as `order_of_batch` returns it.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    inputs = [match for match in matches if split_key(match.ref)[0] == INPUT]
    order = order or _order_inside(dumps, inputs, matches)
    if not order:
        return tuple(matches)
    return tuple(in_order(dumps, match, order) for match in matches)


def _order(dumps: Dumps, inputs: Sequence[Match]) -> Order:
    """Returns the index in the candidate of each example of the reference; empty where it is the same or none.

    Of examples that are equal in all inputs that differ, the first of the one is the first of the other.
    """
    moved = [match for match in inputs if dumps.ref.entry(match.ref).shape[:1] > (1,) and _may_differ(dumps, match)]
    if not moved or len({dumps.ref.entry(match.ref).shape[0] for match in moved}) != 1:
        return ()
    pairs = [pair for match in moved if (pair := _arrays(dumps, match)) is not None]
    differing = [(one, other) for one, other in pairs if examples_of([one]) != examples_of([other])]
    indices: defaultdict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for index, example in enumerate(examples_of([other for _, other in differing])):
        indices[example].append(index)
    order = [indices[each].pop(0) if indices.get(each) else -1 for each in examples_of([one for one, _ in differing])]
    return tuple(order) if -1 not in order and order != sorted(order) else ()


def _order_inside(dumps: Dumps, inputs: Sequence[Match], matches: Sequence[Match]) -> Order:
    """Returns the order in which the candidate takes the examples of a batch that agrees; empty for that of the batch.

    Args:
        dumps: The dumps.
        inputs: The matches of inputs.
        matches: All matches.
    """
    leading = {shape[0] for match in inputs if (shape := dumps.ref.entry(match.ref).shape)}
    if len(leading) != 1 or any(_differing(dumps, match) is not None for match in inputs):
        return ()
    values = [match for match in matches if split_key(match.ref)[0] == ACTIVATION]
    values.sort(key=lambda match: dumps.ref.entry(match.ref).site.index)
    differing = ((match, pair) for match in values if (pair := _differing(dumps, match)) is not None)
    match, first = next(differing, (None, None))
    if match is None or first is None:
        return ()
    order = _proven(first, examples=leading.pop(), gradients=_gradients(dumps, match, matches))
    if not order or _losses_agree(dumps):
        return order
    rest = (pair for _, pair in differing if pair.ref.size and _divides(len(order), math.prod(pair.ref.shape)))
    return order if any(pair.error_in(order) > pair.tolerance for pair in rest) else ()


class _Pair(NamedTuple):
    """_Pair has two values in one layout, and the relative error up to which they agree."""

    ref: Array
    cand: Array
    tolerance: float

    def error_in(self, order: Order) -> float:
        """Returns the least relative error of the values with the examples of one in an order."""
        candidates = _candidates(self.ref.shape, order)
        return min((relative_error(self.ref, each.apply(self.cand)) for each in candidates), default=math.inf)


def _differing(dumps: Dumps, match: Match) -> _Pair | None:
    """Returns the values of a pair that do not agree as they are; None where they do, or cannot be compared."""
    if not _may_differ(dumps, match) or (arrays := _arrays(dumps, match)) is None:
        return None
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.recipe.keys[0])
    tolerance = dumps.tolerance(one.family, one.dtype, other.dtype)
    return None if relative_error(*arrays) <= tolerance else _Pair(*arrays, tolerance)


def _gradients(dumps: Dumps, match: Match, matches: Sequence[Match]) -> tuple[Array, Array] | None:
    """Returns the gradients of a pair of activations in one layout; None where they are not paired, or not stored."""
    name = split_key(match.ref)[1]
    pairs = (_arrays(dumps, each) for each in matches if each.ref == key_of(ACTIVATION_GRAD, name))
    return next(pairs, None)


def _proven(pair: _Pair, *, examples: int, gradients: tuple[Array, Array] | None) -> Order:
    """Returns the order in which one value has the examples of another, and agrees with it; empty where none is.

    Args:
        pair: The values.
        examples: The number of examples of the batch.
        gradients: The gradients of both, which tell examples of one value apart; None where there are none.
    """
    shape = pair.ref.shape
    # The halves of two examples' channels may be exchanged, which is no order of the examples.
    axes = [0] if shape[:1] == (examples,) else [axis for axis, size in enumerate(shape) if _divides(examples, size)]
    for axis in axes:
        order = order_of_examples(pair.ref, pair.cand, axis, examples) or order_of_examples(
            pair.ref, pair.cand, axis, examples, equal=True, among_equal=gradients
        )
        if order is not None and relative_error(pair.ref, ExampleOrder(axis, order).apply(pair.cand)) <= pair.tolerance:
            return order
    return ()


def _losses_agree(dumps: Dumps) -> bool:
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    return one is not None and other is not None and math.isclose(one, other, rel_tol=_SAME_LOSS)


def _may_differ(dumps: Dumps, match: Match) -> bool:
    one, other = dumps.ref.entry(dumps.ref.resolve(match.ref)), dumps.cand.entry(dumps.cand.resolve(match.cand))
    hashes = one.stats.get("hash"), other.stats.get("hash")
    return not match.recipe.as_stored or hashes[0] is None or hashes[0] != hashes[1]


def _arrays(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both tensors of a pair in one layout; None where they cannot be compared."""
    if not dumps.ref.has_tensor(match.ref) or not all(map(dumps.cand.has_tensor, match.recipe.keys)):
        return None
    one, other = dumps.ref.entry(dumps.ref.resolve(match.ref)), dumps.cand.entry(dumps.cand.resolve(match.cand))
    if not comparable(one.dtype, other.dtype):
        return None
    ref, cand = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    return (ref, cand) if ref.shape == cand.shape else None


def in_order(dumps: Dumps, match: Match, order: Order) -> Match:
    """Returns a match with the order of the examples where its tensors agree better so.

    Args:
        dumps: The dumps of the match.
        match: The match, with its layout.
        order: The index in the candidate of each example of the reference.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    shape = dumps.ref.entry(match.ref).shape
    if split_key(match.ref)[0] not in _OF_BATCHES or not any(_divides(len(order), size) for size in shape):
        return match
    if not _may_differ(dumps, match) or (arrays := _arrays(dumps, match)) is None:
        return match
    ref, cand = arrays
    errors = {each: relative_error(ref, each.apply(cand)) for each in _candidates(shape, order)}
    best = min(errors, key=lambda each: errors[each])
    as_stored = relative_error(ref, cand)
    return replace(match, recipe=replace(match.recipe, examples=best)) if errors[best] < as_stored else match


def _candidates(shape: Sequence[int], order: tuple[int, ...]) -> Iterator[ExampleOrder]:
    """Yields the axes that may be those of the examples, the likeliest first."""
    axes = [axis for axis, size in enumerate(shape) if _divides(len(order), size)]
    yield from (ExampleOrder(axis, order) for axis in sorted(axes, key=lambda axis: (shape[axis] != len(order), axis)))


def _divides(count: int, size: int) -> bool:
    return size > 0 and math.gcd(size, count) == count
