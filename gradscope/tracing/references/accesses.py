"""Accesses read a part of a cell's value, replace it, or add to it, as the index in an equation selects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.references.reference_cells import Cell, unknown_use

_GET: Final = "get"
#: Primitives that write: replacing what is there and returning it, or adding to it.
_REPLACES, _ADDS = "swap", "addupdate"
ACCESSES: Final = frozenset({_GET, _REPLACES, _ADDS})


def accessed(equation: Equation, cell: Cell, *operands: Any) -> list[Any]:
    """Returns the outputs of an equation that reads or writes a cell, which has the new value then."""
    name = equation.primitive.name
    written, indices = ([], operands) if name == _GET else (operands[:1], operands[1:])
    steps = [_index(equation, each) for each in jax.tree_util.tree_unflatten(equation.params["tree"], indices)]
    before = cell.value
    for step in steps:
        before = step.of(before)
    if name == _GET:
        return [before]
    cell.value = _replaced(cell.value, steps, written[0] if name == _REPLACES else before + written[0])
    return [before] if name == _REPLACES else []


def _replaced(array: Any, steps: Sequence[_Index], value: Any) -> Any:
    """Returns an array in which what the steps lead to is another value."""
    if not steps:
        return value
    first, *others = steps
    return first.replaced(array, _replaced(first.of(array), others, value) if others else value)


class _Index:
    """An `_Index` is an index of numbers, ranges and arrays into an array.

    Args:
        start: The first element on each axis.
        sizes: How many elements each axis has.
        numbers: The axes that have a number for an index, which the result does not have.
        positions: The index as arrays that are broadcast against each other; None where it is one block.
    """

    def __init__(
        self, start: Sequence[Any], sizes: Sequence[int], numbers: Sequence[int], positions: tuple[Any, ...] | None
    ) -> None:
        self._start = start
        self._sizes = sizes
        self._numbers = numbers
        self._positions = positions

    def of(self, array: Any) -> Any:
        """Returns what the index selects."""
        if self._positions is not None:
            return array[self._positions]
        if self._is_whole(array):
            return array
        return jax.lax.squeeze(jax.lax.dynamic_slice(array, self._start, self._sizes), self._numbers)

    def replaced(self, array: Any, value: Any) -> Any:
        """Returns the array in which what the index selects is another value."""
        if self._positions is not None:
            return array.at[self._positions].set(value)
        if self._is_whole(array):
            return value
        return jax.lax.dynamic_update_slice(array, jax.lax.expand_dims(value, self._numbers), self._start)

    def _is_whole(self, array: Any) -> bool:
        return not self._numbers and tuple(self._sizes) == jnp.shape(array)


def _index(equation: Equation, step: Any) -> _Index:
    """Returns an index of JAX's, which has numbers, arrays, and ranges with a start, a size and a stride."""
    indices = getattr(step, "indices", None)
    if indices is None:
        raise unknown_use(equation)
    ranges = [hasattr(each, "stride") for each in indices]
    strided = any(each.stride != 1 for each, is_range in zip(indices, ranges, strict=True) if is_range)
    arrays = [at for at, each in enumerate(indices) if not ranges[at] and jnp.shape(each)]
    numbers = [at for at, is_range in enumerate(ranges) if not is_range]
    if not (arrays or strided):
        start = [each.start if is_range else each for each, is_range in zip(indices, ranges, strict=True)]
        sizes = [each.size if is_range else 1 for each, is_range in zip(indices, ranges, strict=True)]
        return _Index([jnp.asarray(each, jnp.int32) for each in start], sizes, numbers, None)
    if arrays and numbers != list(range(len(numbers))):
        raise unknown_use(equation)  # where the axes of the arrays go is not the same in NumPy and in JAX
    own = len(jnp.broadcast_shapes(*(jnp.shape(indices[at]) for at in numbers)))
    positions: list[Any] = []
    behind = sum(ranges)
    for each, is_range in zip(indices, ranges, strict=True):
        if is_range:
            behind -= 1
            along = jnp.asarray(each.start, jnp.int32) + each.stride * jnp.arange(each.size, dtype=jnp.int32)
            positions.append(along.reshape(each.size, *[1] * behind))
        else:
            shape = jnp.shape(each)
            positions.append(jnp.asarray(each).reshape(*[1] * (own - len(shape)), *shape, *[1] * sum(ranges)))
    return _Index([], [], numbers, tuple(positions))
