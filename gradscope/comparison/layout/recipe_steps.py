"""Recipe steps map a list of arrays to a list of arrays, as the rules of a map file write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.dump.record import Json
from gradscope.protocols import implements

#: The word of a step that changes the order of arrays.
REORDER: Final = "reorder"

#: The word of a step that reverses arrays.
FLIP: Final = "flip"

#: The words of steps that give a vector axes of one element, or take them, and leave its elements where they are.
OF_VECTOR: Final = re.compile(r"reshape \[(1, )*\d+(, 1)*\](, transpose \[[\d, ]+\])?")


class RecipeStep(Protocol):
    """RecipeStep maps a list of arrays to a list of arrays."""

    def apply(self, arrays: list[Array]) -> list[Array]:
        """Returns the arrays that the step makes.

        Raises:
            ValueError: The arrays have shapes that do not fit; the message is NumPy's.
        """
        ...

    def spelling(self) -> dict[str, Json]:
        """Returns the step as a map file writes it."""
        ...


@dataclass(frozen=True, slots=True)
class Transpose:
    """Transpose reorders the axes of each array, as `numpy.transpose` does."""

    axes: tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [array.transpose(self.axes) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"transpose": list(self.axes)}


@dataclass(frozen=True, slots=True)
class Reshape:
    """Reshape gives each array a new shape in C order, as `numpy.reshape` does; one size may be -1."""

    shape: tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [array.reshape(self.shape) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"reshape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class ReshapeEach:
    """ReshapeEach gives each of several arrays a shape of its own, as `Reshape` does."""

    shapes: tuple[tuple[int, ...], ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        if len(self.shapes) != len(arrays):
            raise ValueError(f"{len(self.shapes)} shapes are not those of {len(arrays)} arrays")
        return [array.reshape(shape) for array, shape in zip(arrays, self.shapes, strict=True)]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"reshape": [list(shape) for shape in self.shapes]}


@dataclass(frozen=True, slots=True)
class Flip:
    """Flip reverses each array along some axes, as `numpy.flip` does."""

    axes: tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.flip(array, self.axes) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {FLIP: list(self.axes)}


@dataclass(frozen=True, slots=True)
class Reorder:
    """Reorder changes the order of the arrays: it lists the index that each had before."""

    order: tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        if sorted(self.order) != list(range(len(arrays))):
            raise ValueError(f"{list(self.order)} is no order of {len(arrays)} arrays")
        return [arrays[index] for index in self.order]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {REORDER: list(self.order)}


@dataclass(frozen=True, slots=True)
class Split:
    """Split cuts each array along an axis into a number of equal parts, or into parts of listed sizes."""

    axis: int
    into: int | tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [part for array in arrays for part in np.split(array, self._cuts(array), axis=self.axis)]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"split": self.axis, "into": self.into if isinstance(self.into, int) else list(self.into)}

    def _cuts(self, array: Array) -> int | list[int]:
        if isinstance(self.into, int):
            return self.into
        if sum(self.into) != array.shape[self.axis]:
            raise ValueError(f"parts of {list(self.into)} are not the {array.shape[self.axis]} of axis {self.axis}")
        return np.cumsum(self.into)[:-1].tolist()


@dataclass(frozen=True, slots=True)
class Unstack:
    """Unstack cuts each array into its slices along an axis, and removes that axis."""

    axis: int

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [part for array in arrays for part in np.moveaxis(array, self.axis, 0)]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"unstack": self.axis}


@dataclass(frozen=True, slots=True)
class Concatenate:
    """Concatenate joins all arrays along an axis that they have, as `numpy.concatenate` does."""

    axis: int

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.concatenate(arrays, axis=self.axis)]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"concatenate": self.axis}


@dataclass(frozen=True, slots=True)
class Stack:
    """Stack joins all arrays along a new axis, as `numpy.stack` does."""

    axis: int

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.stack(arrays, axis=self.axis)]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"stack": self.axis}


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum adds up each array along an axis, of which one element stays: the gradient of what was repeated there."""

    axis: int

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [self._of(array) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"sum": self.axis}

    def _of(self, array: Array) -> Array:
        wide = np.complex128 if array.dtype.kind == "c" else np.float64
        return array.astype(wide).sum(self.axis, keepdims=True).astype(array.dtype)


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean averages each array along an axis, of which one element stays: what a batch has of its parts.

    Attributes:
        axis: The axis.
        weights: How much each of its elements counts, as the sizes of unequal parts; empty where all count alike.
    """

    axis: int
    weights: tuple[int, ...] = ()

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [self._of(array) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        weights: dict[str, Json] = {"weights": list(self.weights)} if self.weights else {}
        return {"mean": self.axis, **weights}

    def _of(self, array: Array) -> Array:
        weights = self.weights or (1,) * array.shape[self.axis]
        if len(weights) != array.shape[self.axis]:
            raise ValueError(f"{len(weights)} weights are not the {array.shape[self.axis]} of axis {self.axis}")
        wide = np.complex128 if array.dtype.kind == "c" else np.float64
        along = np.moveaxis(array, self.axis, -1).astype(wide)
        mean = (along * (np.array(weights) / sum(weights))).sum(-1, keepdims=True)
        return np.moveaxis(mean, -1, self.axis).astype(array.dtype)


def in_order_of_blocks(axis: int, blocks: tuple[int, ...]) -> tuple[RecipeStep, ...]:
    """Returns the steps that put the equal blocks along an axis into an order; none without blocks."""
    return (Split(axis, len(blocks)), Reorder(blocks), Concatenate(axis)) if blocks else ()
