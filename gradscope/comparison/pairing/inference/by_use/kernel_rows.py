"""`with_orders_of_kernels` gives what a layer returns the order of features that its kernel has.

A port may have the rows of a kernel in another order, as for rotary positions of pairs side by side in place of halves.
What its layer returns is in that order, too. Its values show that where they agree; behind a fault they do not, and
without the kernel's order they would be compared with other features, which no error above explains.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.interleaved_layouts import interleaved_layouts
from gradscope.comparison.layout.layouts import AxisLayout, relative_error
from gradscope.comparison.layout.recipe_steps import RecipeStep
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import ACTIVATION, PARAM, gradient_family, key_of

#: The share of an error that another one is below that is smaller by far.
_NEARER: Final = 0.5

#: The fewest axes of a kernel.
_AXES: Final = 2


def with_orders_of_kernels(
    dumps: Dumps,
    search: LayoutSearch,
    matches: Sequence[Match],
    known: Mapping[Match, AxisLayout],
    undecided: Collection[Match],
) -> dict[Match, AxisLayout]:
    """Returns the layouts with those of values of layers whose kernels have halves interleaved, and of their gradients.

    Args:
        dumps: The dumps.
        search: Finds layouts.
        matches: All pairs.
        known: Layouts by pair.
        undecided: The pairs whose values agree in no layout.
    """
    found, by_key = dict(known), {dumps.ref.resolve(match.ref): match for match in matches}
    for layer in dumps.ref.manifest.layers:
        kernels = [each for name in layer.params if (each := by_key.get(key_of(PARAM, name))) is not None]
        order = next((each for kernel in kernels for each in _orders_of_kernel(kernel, known.get(kernel), dumps)), ())
        values = [key_of(ACTIVATION, name) for name in layer.outputs] if order else []
        gradients = [key_of(gradient_family(ACTIVATION) or "", name) for name in layer.outputs] if order else []
        for match in (each for key in (*values, *gradients) if (each := by_key.get(key)) in undecided):
            if match is not None and (layout := _in_order(order, match, dumps, search)) is not None:
                found[match] = layout
    return found


def _orders_of_kernel(kernel: Match, layout: AxisLayout | None, dumps: Dumps) -> list[tuple[int, ...]]:
    """Returns the order of the candidate's elements along each axis of a kernel along which they are moved."""
    shape = dumps.cand.entry(kernel.cand).shape
    if len(kernel.recipe.keys) > 1 or len(shape) < _AXES:
        return []
    return _orders(kernel.recipe.steps if layout is None else layout.steps(shape), shape)


def _orders(steps: Sequence[RecipeStep], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the order of the candidate's elements along each axis of the reference along which they are moved."""
    numbers: list[Array] = [np.arange(math.prod(shape)).reshape(shape)]
    read, *others = reduce(lambda arrays, step: step.apply(arrays), steps, numbers)
    if others or not read.size:
        return []
    lines = (np.moveaxis(read, axis, 0).reshape(size, -1)[:, 0] for axis, size in enumerate(read.shape))
    orders = (tuple(np.argsort(np.argsort(line)).tolist()) for line in lines)
    return [order for order in orders if order != tuple(range(len(order)))]


def _in_order(order: tuple[int, ...], match: Match, dumps: Dumps, search: LayoutSearch) -> AxisLayout | None:
    """Returns the layout of a pair in which its features have an order, where it is by far nearer to each other so."""
    if not (dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)):
        return None
    one, other = search.arrays(match.ref, match.cand)
    layouts = interleaved_layouts(one.shape, other.shape)
    layout = next((each for each in layouts if _orders(each.steps(other.shape), other.shape) == [order]), None)
    if layout is None:
        return None
    plain = min((relative_error(one, other, each) for each in search.possible(match.ref, match.cand)), default=math.inf)
    return layout if relative_error(one, other, layout) < _NEARER * plain else None
