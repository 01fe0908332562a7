"""`read_values` returns what two layers may read of values that are pairs, of which only one program may have an entry.

A layer may read a well-known function of a value, what a step that only the reference has makes of it, as a pool, or
several values that are added up, or joined along their channels, in one order or another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.step_kinds import recognised
from gradscope.comparison.layout.spreading import spread_shapes

#: The most elements of a value of which functions are tried, and the most values that are joined.
_MOST_ARGUMENTS: Final = 1 << 18
_MOST_JOINED: Final = 3


class ReadValue(NamedTuple):
    """ReadValue has what both layers may read.

    Attributes:
        words: What that is of which values; "" where the candidate's layer may read nothing else in its place.
        own: What the layer of the reference may read.
        other: What that of the candidate may read.
    """

    words: str
    own: Array
    other: Array


def read_values(pairs: Mapping[str, tuple[Array, Array]], steps: Mapping[str, Array]) -> Iterator[list[ReadValue]]:
    """Yields what both layers may read, each with what the candidate's may read in its place.

    Args:
        pairs: Both values of the pairs that the layers are computed from, by their names.
        steps: What the reference's layer reads that is no pair, by its name. The candidate may have the same.
    """
    yield from _each_first([*_added(pairs)])
    for own, other in pairs.values():
        for step in steps.values():
            yield from ([ReadValue("", step, operation.apply(other))] for operation, _ in recognised(own, step))
    if 1 < len(pairs) <= _MOST_JOINED:
        yield from _joined(pairs)
    for own, other in pairs.values():
        functions = ELEMENTWISE.values() if own.size <= _MOST_ARGUMENTS else ()
        yield from ([ReadValue("", function(own), function(other))] for function in functions)
    for name, step in steps.items():
        if step.size <= _MOST_ARGUMENTS:
            of_step = [ReadValue(f"reads `{name}`", step, step)]
            for words, function in ELEMENTWISE.items():
                value = function(step)
                of_step.append(ReadValue(f"reads the {words} of `{name}`", value, value))
            yield from _each_first(of_step)


def _each_first(reads: Sequence[ReadValue]) -> Iterator[list[ReadValue]]:
    """Yields values in orders in which each is the first of one."""
    yield from ([each, *(other for other in reads if other is not each)] for each in reads)


def _added(pairs: Mapping[str, tuple[Array, Array]]) -> Iterator[ReadValue]:
    """Yields each value, and the sums of several that have one shape, or are the same for all examples or positions."""
    for count in range(1, (len(pairs) if len(pairs) <= _MOST_JOINED else 1) + 1):
        for names in itertools.combinations(pairs, count):
            most = max((pairs[name][0].shape for name in names), key=len)
            ways = [spread_shapes(pairs[name][0].shape, most) for name in names]
            words = "reads " + " + ".join(f"`{name}`" for name in names)
            for shapes in itertools.product(*ways):
                terms = [
                    [each.reshape(shape) for each in pairs[name]] for name, shape in zip(names, shapes, strict=True)
                ]
                own, other = (sum(values) for values in zip(*terms, strict=True))
                yield ReadValue(words, np.asarray(own), np.asarray(other))


def _joined(pairs: Mapping[str, tuple[Array, Array]]) -> Iterator[list[ReadValue]]:
    """Yields values that are joined along the axis that their channels can have, in every order, each order first."""
    rank = {own.ndim for own, _ in pairs.values()}
    for axis in dict.fromkeys((1, max(rank) - 1)) if len(rank) == 1 and min(rank) > 1 else ():
        if len({np.delete(own.shape, axis).tobytes() for own, _ in pairs.values()}) == 1:
            yield from _each_first(
                [
                    ReadValue(
                        "joins " + " and ".join(f"`{name}`" for name in order),
                        *(np.concatenate([pairs[name][at] for name in order], axis) for at in (0, 1)),
                    )
                    for order in itertools.permutations(pairs)
                ]
            )
