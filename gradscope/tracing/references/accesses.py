"""Accesses read a part of a cell's value, replace it, or add to it, as the index in an equation selects it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
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
    cell.value = _written(cell.value, steps, written[0], adds=name == _ADDS)
    return [before] if name == _REPLACES else []


def _written(array: Any, steps: Sequence[_Index], value: Any, *, adds: bool) -> Any:
    """Returns an array in which what the steps lead to is another value, or has it added."""
    if not steps:
        return array + value if adds else value
    first, *others = steps
    if others:
        return first.written(array, _written(first.of(array), others, value, adds=adds), adds=False)
    return first.written(array, value, adds=adds)


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

    def written(self, array: Any, value: Any, *, adds: bool) -> Any:
        """Returns the array in which what the index selects is another value, or has it added."""
        if self._positions is not None:
            places = array.at[self._positions]
            return places.add(value) if adds else places.set(value)  # one that is selected twice gets both
        value = self.of(array) + value if adds else value
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
    shape = jnp.broadcast_shapes(*(jnp.shape(indices[at]) for at in numbers))
    # The axes of the arrays come first, or stay where they are, behind the ranges before them.
    side_by_side = bool(numbers) and numbers == list(range(numbers[0], numbers[-1] + 1))
    before = sum(ranges[: numbers[0]]) if side_by_side and _stays_in_place() else 0
    behind = sum(ranges) - before
    positions: list[Any] = []
    for at, (each, is_range) in enumerate(zip(indices, ranges, strict=True)):
        if is_range:
            along = jnp.asarray(each.start, jnp.int32) + each.stride * jnp.arange(each.size, dtype=jnp.int32)
            later = sum(ranges[at + 1 :])
            positions.append(along.reshape(each.size, *[1] * (later + (len(shape) if later >= behind else 0))))
        else:
            own = jnp.broadcast_to(jnp.asarray(each), shape)
            positions.append(own.reshape(*shape, *[1] * behind))
    return _Index([], [], numbers, tuple(positions))


@cache
def _stays_in_place() -> bool:
    """Returns whether an array for an index leaves its axes behind those of a range before, which JAX has changed."""
    read = jax.eval_shape(lambda: jax.new_ref(jnp.zeros((2, 3)))[:, jnp.zeros(5, jnp.int32)])
    return read.shape == (2, 5)
