"""`LayoutSearch` finds the layouts in which two tensors of a pair agree by far best.

Beyond the layouts that the shapes allow, it tries flips of a parameter's spatial axes (a convolution, where another
framework correlates) or of its leading one (layers that are stacked the other way round), and other orders inside of an
axis that is a flattened image (`[H W C]` for `[C H W]`). How many channels there may be is known from the activations
and inputs of both dumps. Last, it tries heads whose halves are interleaved. The gradient of a constant has the layout
that the constant does not show.

Where a batch has its examples in another order, its inputs show the layout by their examples alone, and what is
computed from them is read in that order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.comparison.layout.example_orders import Order, layouts_of_moved_examples
from gradscope.comparison.layout.layouts import (
    AxisLayout,
    Shape,
    agreeing_layouts,
    arranged,
    arranged_part,
    flipped_layouts,
    layouts,
    relative_error,
)
from gradscope.comparison.layout.recipe_steps import Transpose
from gradscope.comparison.metrics.bounds import statistics_agree
from gradscope.comparison.pairing.inference.equal_parts import (
    has_constant_blocks,
    interleaved,
    reordered_blocks,
    shifted_blocks,
)
from gradscope.comparison.pairing.inference.shuffled_blocks import shuffled_counts
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    STATE,
    TENSOR,
    key_of,
    split_key,
    subject_family,
)

#: A family, and the shapes of a tensor in both dumps.
Shapes: TypeAlias = tuple[str, Shape, Shape]

#: The families of which a tensor can be a kernel.
_KERNELS: Final = (PARAM, STATE, TENSOR)

#: The families of tensors that may have the examples of the batch along their first axis.
_OF_BATCHES: Final = (ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, AUX)

#: The families of which an axis, or the rows of a kernel, can be a flattened image.
_FLATTENED: Final = (PARAM, STATE, TENSOR, ACTIVATION, INPUT, AUX)

#: The largest number of numbers of channels that are tried.
_MOST_CHANNELS: Final = 16

#: The share of an error that another one is below that is smaller by far, of values that agree in neither layout.
_NEARER: Final = 0.5

#: The relative error below which one value has a part of another, such as all but the bias.
_RELATED: Final = 0.9


class LayoutSearch:
    """LayoutSearch finds layouts by a sample of the values.

    Args:
        dumps: The dumps of the pairs.
        order: The index in the candidate of each example of the reference; empty where it is the same.
    """

    def __init__(self, dumps: Dumps, order: Order = ()) -> None:
        self._dumps, self._order = dumps, order

    @cached_property
    def _keys(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self._dumps.ref.keys()), frozenset(self._dumps.cand.keys())

    def agreeing(self, ref: str, cand: str) -> tuple[AxisLayout, ...]:
        """Returns the layouts in which two tensors agree by far best; several where they are equal in all of them.

        Of tensors of which only statistics are known, and agree, these are all that the shapes allow, and the first is
        the likeliest.

        Args:
            ref: A key of the reference.
            cand: A key of the candidate, of the same kind of dtype.
        """
        if is_key(self._dumps.ref.entry(ref).dtype):
            return ()  # the words of random keys are stored along an axis of their own, which no layout counts
        if not (self._dumps.ref.has_tensor(ref) and self._dumps.cand.has_tensor(cand)):
            possible = self.possible(ref, cand) if self._statistics_agree(ref, cand) else ()
            return tuple(sorted(possible, key=lambda layout: likeliness(layout.axes), reverse=True))
        one, other = self.arrays(ref, cand)
        family = self._dumps.ref.entry(ref).family
        possible = self.possible(ref, cand)
        read = (agreeing_layouts(one, each, possible) for each in self._readings(cand))
        found: tuple[AxisLayout, ...] = next(filter(None, read), ())
        if family == INPUT:
            return found or layouts_of_moved_examples(one, other, possible)
        is_kernel = family in _KERNELS or (family == PARAM_GRAD and self.of_constants(*map(_parameter, (ref, cand))))
        if found or not (is_kernel or family == ACTIVATION):
            return found
        if is_kernel:
            found = agreeing_layouts(one, other, flipped_layouts(one.shape, other.shape))
            found = found or reordered_blocks(one, other) or shifted_blocks(one, other)
        found = found or reordered_blocks(one, other, shuffled_counts(one, other))
        return found or interleaved(one, other)

    def _statistics_agree(self, ref: str, cand: str) -> bool:
        one, other = (
            source.entry(source.resolve(key)) for source, key in ((self._dumps.ref, ref), (self._dumps.cand, cand))
        )
        return statistics_agree(one.stats, other.stats, self._dumps.tolerance(one.family, one.dtype, other.dtype))

    def of_constants(self, ref: str, cand: str) -> bool:
        """Returns whether two tensors are constants, such as biases of zeros, which agree in every layout.

        Nor does a vector show its layout that is constant in each of a few blocks, as a bias of zeros but for one gate.

        Args:
            ref: A key of the reference.
            cand: A key of the candidate.
        """
        sides = [*zip((self._dumps.ref, self._dumps.cand), self._keys, (ref, cand), strict=True)]
        stats = [source.entry(key).stats for source, keys, key in sides if key in keys]
        if len(stats) > 1 and all("min" in each and each["min"] == each.get("max") for each in stats):
            return True
        shapes = {source.entry(key).shape for source, keys, key in sides if key in keys}
        stored = len(stats) > 1 and self._dumps.ref.has_tensor(ref) and self._dumps.cand.has_tensor(cand)
        if not stored or len(shapes) > 1 or len(*shapes) != 1:
            return False
        return has_constant_blocks(self._dumps.ref.array(ref)) and has_constant_blocks(self._dumps.cand.array(cand))

    def possible(self, ref: str, cand: str) -> tuple[AxisLayout, ...]:
        """Returns the layouts without flips that the shapes of two tensors allow."""
        one, other = self._dumps.ref.entry(ref), self._dumps.cand.entry(cand)
        shape = arranged(other)
        flattened = (subject_family(one.family) or one.family) in _FLATTENED
        return self.of_shapes(arranged(one), shape) if flattened else layouts(arranged(one), shape)

    def of_shapes(self, ref: Shape, cand: Shape) -> tuple[AxisLayout, ...]:
        """Returns the layouts without flips that two shapes allow, where an axis may be a flattened image."""
        return layouts(ref, cand, self._merged(cand))

    def nearest(
        self, ref: str, cand: str, among: Iterable[AxisLayout], plain: AxisLayout | None, usual: AxisLayout | None
    ) -> AxisLayout | None:
        """Returns the layout in which two tensors are compared that agree in none.

        That is the usual one, or that in their order where they are by far nearer to each other in it, or where there
        is no usual one. Without either it is any other in which they are by far nearer to each other than in the rest.

        Args:
            ref: A key of the reference.
            cand: A key of the candidate.
            among: The layouts that their shapes allow.
            plain: That of them in which their elements are in one order; None where there is none.
            usual: That of them which most other pairs have; None where there is none.
        """
        stored = self._dumps.ref.has_tensor(ref) and self._dumps.cand.has_tensor(cand)
        if not stored or (plain is None) is not (usual is None):
            return usual or plain
        one, other = self.arrays(ref, cand)
        chosen = [each for each in among if pure_axes(each)] if plain is None or usual is None else [plain, usual]
        errors = {each: relative_error(one, other, each) for each in chosen}
        near, far, *_ = [*sorted(errors.values()), math.inf, math.inf]
        # Values that have nothing to do with each other differ by more than they are large, whatever their order.
        is_near = near < _NEARER * far and (usual is not None or near < _RELATED)
        return min(errors, key=errors.__getitem__) if is_near else usual

    def arrays(self, ref: str, cand: str) -> tuple[Array, Array]:
        """Returns the elements of two tensors that layouts are about."""
        source = self._dumps.ref
        return arranged_part(source.array(ref), source.entry(ref)), next(self._readings(cand))

    def _readings(self, key: str) -> Iterator[Array]:
        """Yields the elements of a tensor of the candidate that layouts are about, as its axes of examples are read.

        Where the batch is in another order, that is each axis of as many elements in turn, the first one before others.
        """
        array, entry = self._dumps.cand.array(key), self._dumps.cand.entry(key)
        of_batch = bool(self._order) and entry.family in _OF_BATCHES
        axes = [axis for axis, size in enumerate(array.shape) if of_batch and size == len(self._order)]
        yield from (array.take(self._order, axis) for axis in axes)
        if not axes:
            yield arranged_part(array, entry)

    def _merged(self, shape: Shape) -> tuple[Shape, ...]:
        """Returns the two parts that each axis may be merged of: channels, and the positions of an image."""
        divisors = ((size, count) for size in shape for count in self._channels if 1 < count < size)
        pairs = ((size // count, count) for size, count in divisors if not size % count)
        return tuple(dict.fromkeys(order for each in pairs for order in (each, each[::-1])))

    @cached_property
    def _channels(self) -> tuple[int, ...]:
        """The numbers of channels of both dumps' activations and inputs: their second axis, or their last."""
        counts: dict[int, None] = {}
        for source in (self._dumps.ref, self._dumps.cand):
            for entry in source.manifest.entries:
                if entry.family in (ACTIVATION, INPUT) and len(entry.shape) in (3, 4, 5):
                    counts |= dict.fromkeys((entry.shape[1], entry.shape[-1]))
        return tuple(counts)[:_MOST_CHANNELS]


def likeliest_axes(votes: Counter[Shape]) -> Shape:
    """Returns the order of axes that the most pairs allow; of several, the likeliest.

    Args:
        votes: The number of pairs that allow each order.
    """
    return max(votes, key=lambda axes: (votes[axes], likeliness(axes)), default=())


def likeliness(axes: Shape) -> tuple[bool, int]:
    """Returns how likely an order of axes is: whether frameworks have kernels or images in it, and how many axes stay
    side by side.
    """
    rank = len(axes)
    kernels = (rank - 1, rank - 2, *range(rank - 2)), (*range(2, rank), 1, 0)
    images = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    return axes in (*kernels, *images), sum(after == axis + 1 for axis, after in pairwise(axes))


def pure_axes(layout: AxisLayout) -> tuple[int, ...] | None:
    """Returns the order of axes of a layout that neither splits nor merges any; None for others."""
    arranged = tuple(layout.split[axis] for axis in layout.axes)
    if layout.blocks is not None:
        return None
    return layout.axes if arranged == layout.shape and len(layout.split) == len(layout.shape) else None


def _parameter(key: str) -> str:
    return key_of(PARAM, split_key(key)[1])


def transposed_by_values(dumps: Dumps, matches: Iterable[Match]) -> dict[Match, AxisLayout]:
    """Returns the layouts of the pairs that were found by their values with their axes in another order."""
    found: dict[Match, AxisLayout] = {}
    for match in matches:
        steps = match.recipe.steps
        if match.matched_by == "fingerprint" and len(match.recipe.keys) == len(steps) == 1:
            (step,) = steps
            if isinstance(step, Transpose):
                ref, cand = arranged(dumps.ref.entry(match.ref)), arranged(dumps.cand.entry(match.cand))
                found[match] = AxisLayout(cand, step.axes, ref)
    return found


def layouts_by_shapes(dumps: Dumps, transposed: Mapping[Match, AxisLayout]) -> dict[Shapes, AxisLayout]:
    """Returns the order of axes in which most pairs of two different shapes were found by their values."""
    counts: defaultdict[Shapes, Counter[AxisLayout]] = defaultdict(Counter)
    for match, layout in transposed.items():
        if layout.shape != layout.split:
            counts[both_shapes(dumps, match)][layout] += 1
    return {shapes: layouts.most_common(1)[0][0] for shapes, layouts in counts.items()}


def both_shapes(dumps: Dumps, match: Match) -> Shapes:
    """Returns the family that the layout belongs to, and both shapes: a value and its gradients have one layout."""
    family = split_key(match.ref)[0]
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    return subject_family(family) or family, arranged(one), arranged(other)
