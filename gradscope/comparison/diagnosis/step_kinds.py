"""`Operation` is a step that computes one value from another; `recognised` finds which, and what could be in its place.

A step of one program may be another of the same kind in the other program: the mean of windows for their maximum, one
activation function for another, another order of axes before an image is flattened.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.functions_between import MOST_ELEMENTS

#: The relative error up to which a value is that of an operation.
_ROUNDING: Final = 1e-5

#: The relative error up to which values of two programs have the same elements, and the fewest that show that.
_ALIKE: Final = 1e-4
_FEWEST: Final = 16

#: What a step is called that returns what it reads.
_SAME: Final = "identity"

#: The largest number of axes whose orders are tried.
_MOST_AXES: Final = 5

#: What is computed of windows, by name; each gets the values and the axes within the windows.
_OF_WINDOWS: Final[Mapping[str, Callable[[Array, tuple[int, ...]], Array]]] = MappingProxyType({
    "mean": lambda x, axes: x.mean(axes),
    "maximum": lambda x, axes: x.max(axes),
    "minimum": lambda x, axes: x.min(axes),
    "sum": lambda x, axes: x.sum(axes),
    "first": lambda x, axes: _one_of(x, axes, 0),
    "last": lambda x, axes: _one_of(x, axes, -1),
})  # fmt: skip


#: Both halves of the channels of a value, along its first axis, by their words.
_HALVES: Final[Mapping[tuple[str, str], Callable[[Array], tuple[Array, Array]]]] = MappingProxyType({
    ("first half", "second"): lambda x: (x[: len(x) // 2], x[len(x) // 2 :]),
    ("second half", "first"): lambda x: (x[len(x) // 2 :], x[: len(x) // 2]),
    ("even elements", "odd"): lambda x: (x[::2], x[1::2]),
    ("odd elements", "even"): lambda x: (x[1::2], x[::2]),
})  # fmt: skip

#: What one half may be multiplied by, the other one in braces.
_GATES: Final[Mapping[str, Elementwise]] = MappingProxyType({
    "": np.ones_like,
    " times the {}": np.copy,
    **{f" times the {name} of the {{}}": ELEMENTWISE[name]
       for name in ("sigmoid", "silu", "gelu by tanh", "gelu by erf", "relu", "tanh", "hard_sigmoid")},
})  # fmt: skip


class Operation(NamedTuple):
    """Operation has what a step computes, in words, and the function that computes it."""

    words: str
    apply: Callable[[Array], Array]


def recognised(read: Array, value: Array) -> Iterator[tuple[Operation, list[Operation]]]:
    """Yields the operations that make a value of what is read, each with the others of its kind.

    Args:
        read: What a step reads.
        value: What it computes.
    """
    limit = _ROUNDING * float(np.linalg.norm(value))
    for kind in (_functions(read, value), _reductions(read, value), _orders(read, value), _gates(read, value)):
        found = [each for each in kind if np.linalg.norm(each.apply(read) - value) <= limit]
        if found:
            yield _named(found), [each for each in kind if each not in found]


def _named(found: Sequence[Operation]) -> Operation:
    """Returns the first of the operations that make a value, and of an identity says what else it may be.

    A rectifier of positive values returns these.
    """
    first, *others = found
    return Operation(f"{first.words} or {others[0].words}", first.apply) if others and first.words == _SAME else first


def in_its_place(read: Array, value: Array, others: Iterable[Array]) -> tuple[Operation, Operation] | None:
    """Returns the operation that makes a value, and another of its kind that makes one of others, in any order.

    Args:
        read: What a step reads.
        value: What it computes.
        others: The values of the other program, in its layout. They are requested one at a time, and only where there
            is an operation that could make them.
    """
    possible = [
        (operation, other, float(np.linalg.norm(made)))
        for operation, alternatives in recognised(read, value)
        for other in alternatives
        if not have_same_elements(made := other.apply(read), value)
    ]
    for each in others if possible else ():
        expected = float(np.linalg.norm(each))
        for operation, other, norm in possible:
            if _is_near(norm, expected) and have_same_elements(other.apply(read), each):
                return operation, other
    return None


def reductions(read: Array, axes: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yields what may be computed over whole axes of a value, by its words.

    Args:
        read: The value.
        axes: The axes.
    """
    yield from ((words, function(read, axes)) for words, function in _OF_WINDOWS.items())


def windows_of(read: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yields what may be computed of equal windows of a value, by its words.

    Args:
        read: The value, of which some may be left behind the last window.
        shape: The shape of the result, which has fewer elements.
    """
    windows = next(_windows(read.shape, shape), None) if len(shape) == read.ndim else None
    if windows is not None:
        yield from ((each.words, each.apply(read)) for each in _reductions_of(read, windows, shape))


def have_same_elements(one: Array, other: Array) -> bool:
    """Returns whether two values have the same elements in any order, and enough that this says something.

    Args:
        one: A value.
        other: The value that it is compared with, to whose norm errors are relative.
    """
    norm = float(np.linalg.norm(other))
    if one.size != other.size or one.size < _FEWEST or not _is_near(float(np.linalg.norm(one)), norm):
        return False
    return bool(np.linalg.norm(np.sort(one, axis=None) - np.sort(other, axis=None)) <= _ALIKE * norm)


def _is_near(one: float, norm: float) -> bool:
    return abs(one - norm) <= _ALIKE * norm


def _functions(read: Array, value: Array) -> list[Operation]:
    """Returns the functions of single elements; none of very many, on all of which each would be tried."""
    if read.shape != value.shape or read.size > MOST_ELEMENTS:
        return []
    return [Operation(_SAME, np.copy), *(Operation(name, each) for name, each in ELEMENTWISE.items())]


def _reductions(read: Array, value: Array) -> list[Operation]:
    """Returns what may be computed of equal windows, which are whole axes where the value has fewer of them."""
    windows = next(_windows(read.shape, value.shape), None)
    return [] if windows is None else _reductions_of(read, windows, value.shape)


def _reductions_of(read: Array, windows: tuple[int, ...], shape: tuple[int, ...]) -> list[Operation]:
    split = tuple(itertools.chain.from_iterable(zip(windows, read.shape // np.array(windows), strict=True)))
    within = tuple(range(1, 2 * read.ndim, 2))
    return [
        Operation(name, partial(_reduced, function, tuple(map(int, split)), within, shape))
        for name, function in _OF_WINDOWS.items()
    ]


def _windows(read: tuple[int, ...], value: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields the numbers of windows along each axis of what is read; those of whole axes have one.

    What is left of an axis behind the last whole window is in none.
    """
    if not 0 < math.prod(value) < math.prod(read) or read[:1] != value[:1]:
        return
    if len(read) == len(value) and all(
        0 < other <= own and own // (own // other) == other for own, other in zip(read, value, strict=True)
    ):
        yield value
    for axes in itertools.chain.from_iterable(
        itertools.combinations(range(1, len(read)), n) for n in range(1, len(read))
    ):
        if tuple(size for axis, size in enumerate(read) if axis not in axes) == value:
            yield tuple(1 if axis in axes else size for axis, size in enumerate(read))


def _reduced(
    function: Callable[[Array, tuple[int, ...]], Array],
    split: tuple[int, ...],
    within: tuple[int, ...],
    shape: tuple[int, ...],
    read: Array,
) -> Array:
    whole = read[tuple(slice(count * width) for count, width in zip(split[::2], split[1::2], strict=True))]
    return function(whole.reshape(split), within).reshape(shape)


def _one_of(x: Array, axes: tuple[int, ...], place: int) -> Array:
    return x[tuple(place if axis in axes else slice(None) for axis in range(x.ndim))]


def orders(read: Array) -> Iterator[Array]:
    """Yields what is read with its axes joined in other orders than its own, in its shape.

    Args:
        read: What a step reads.
    """
    own = (each.apply(read) for each in _orders(read, read))
    yield from (each for each in own if not np.array_equal(each, read))


def _orders(read: Array, value: Array) -> list[Operation]:
    """Returns the orders in which the axes of what is read, and is not too large, may be before they are joined."""
    if not read.size == value.size <= MOST_ELEMENTS:
        return []
    if not 2 < read.ndim <= _MOST_AXES or read.shape[0] != value.shape[0]:
        return []
    orders = itertools.permutations(range(1, read.ndim))
    return [Operation(f"order of axes {[0, *order]}", partial(_ordered, (0, *order), value.shape)) for order in orders]


def _gates(read: Array, value: Array) -> list[Operation]:
    """Returns what gates make of halves of the channels, of which one is multiplied by a function of the other."""
    if read.ndim != value.ndim or read.size > MOST_ELEMENTS:
        return []
    cut = [axis for axis, (own, made) in enumerate(zip(read.shape, value.shape, strict=True)) if own != made]
    if len(cut) != 1 or read.size != 2 * value.size:
        return []
    return [
        Operation(f"{one}{words.format(other)}", partial(_gated, cut[0], halves, function))
        for (one, other), halves in _HALVES.items()
        for words, function in _GATES.items()
    ]


def _gated(axis: int, halves: Callable[[Array], tuple[Array, Array]], function: Elementwise, read: Array) -> Array:
    one, other = halves(np.moveaxis(read, axis, 0))
    return np.moveaxis(one * function(other), 0, axis)


def _ordered(axes: tuple[int, ...], shape: tuple[int, ...], read: Array) -> Array:
    return read.transpose(axes).reshape(shape)
