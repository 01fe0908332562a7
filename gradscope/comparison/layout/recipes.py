"""Recipes make the counterpart of a tensor from tensors of the candidate that are stored in another form.

A recipe applies *steps* to a list of tensors and selects one of the results. A step works on each tensor (transpose,
reshape, flip, sum), makes several tensors of one (split, unstack), or one of several (concatenate, stack):

    Recipe(keys=("param/w",), steps=(Transpose((1, 0)),))            # w.T
    Recipe(keys=("param/qkv",), steps=(Split(1, 3),), part=2)        # np.split(qkv, 3, axis=1)[2]

Steps are written for the parameter. Per-example gradients have a leading axis of examples, so the steps are applied
example by example. After the steps, a recipe may put the examples of a batch into another order.

Sharp edge: a recipe with steps needs its tensors in memory in full, one pair per thread; plain tensors are streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming import example_axes, printable, split_key
from gradscope.protocols import implements

#: What the description of a recipe says of a batch whose examples are in another order.
REORDERED: Final = "examples in another order"


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
class Flip:
    """Flip reverses each array along some axes, as `numpy.flip` does."""

    axes: tuple[int, ...]

    @implements(RecipeStep)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.flip(array, self.axes) for array in arrays]

    @implements(RecipeStep)
    def spelling(self) -> dict[str, Json]:
        return {"flip": list(self.axes)}


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
        return {"reorder": list(self.order)}


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
class ExampleOrder:
    """ExampleOrder puts the examples of a batch into another order.

    Attributes:
        axis: The axis of the examples; each may have several consecutive entries of it, as where time is merged in.
        order: The index that each example had before.
    """

    axis: int
    order: tuple[int, ...]

    def apply(self, array: Array) -> Array:
        """Returns an array whose axis is a multiple of the number of examples with the examples in this order."""
        shape, axis = array.shape, self.axis
        each = array.reshape(*shape[:axis], len(self.order), shape[axis] // len(self.order), *shape[axis + 1 :])
        return each.take(self.order, axis=axis).reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe makes one tensor of a dump's tensors.

    Attributes:
        keys: The tensors that the steps start from.
        steps: The steps in order.
        part: The index of the result among the arrays that the last step makes.
        examples: The order of the examples in the result; None for that in which they are stored.
    """

    keys: tuple[str, ...]
    steps: tuple[RecipeStep, ...] = ()
    part: int = 0
    examples: ExampleOrder | None = None

    @property
    def plain(self) -> bool:
        """Whether the result is a stored tensor without any change."""
        return self.as_stored and self.examples is None

    @property
    def as_stored(self) -> bool:
        """Whether the result is a stored tensor, with its examples in whatever order."""
        return not self.steps and len(self.keys) == 1

    @property
    def only_moves(self) -> bool:
        """Whether each element of the result is one of a stored tensor."""
        return not any(isinstance(step, Sum) for step in self.steps)

    def array(self, source: DumpSource) -> Array:
        """Returns the result from the tensors of a dump.

        Raises:
            UsageError: A step does not fit the shapes; the message names the step and the tensors.
            DumpError: A tensor is damaged.
        """
        return self.made_of([source.array(key) for key in self.keys])

    def made_of(self, arrays: list[Array]) -> Array:
        """Returns the result from arrays that replace the dump's tensors, one for each key.

        Raises:
            UsageError: A step does not fit the shapes; the message names the step and the tensors.
        """
        family, _ = split_key(self.keys[0])
        if self.as_stored or not example_axes(family) or any(array.shape[:1] < (1,) for array in arrays):
            made = self._made_of(arrays)
        else:
            made = np.stack([self._made_of(list(each)) for each in zip(*arrays, strict=False)])
        return made if self.examples is None else self.examples.apply(made)

    def _made_of(self, arrays: list[Array]) -> Array:
        arrays = self.results(arrays)
        if self.part >= len(arrays):
            raise UsageError(
                f"{printable(', '.join(self.keys))} gives {len(arrays)} tensors, part {self.part} is requested"
            )
        return arrays[self.part]

    def results(self, arrays: list[Array]) -> list[Array]:
        """Returns everything that the steps make of arrays, one for each key.

        Raises:
            UsageError: A step does not fit the shapes; the message names the step and the tensors.
        """
        for step in self.steps:
            shapes = [array.shape for array in arrays]
            try:
                arrays = step.apply(arrays)
            except (ValueError, IndexError) as error:  # NumPy has an AxisError that is both
                raise UsageError(
                    f"cannot {_words(step)} {printable(', '.join(self.keys))} of shape "
                    f"{', '.join(map(str, shapes))}: {error}",
                    hint="correct the steps of the rule in the map file",
                ) from error
        return arrays

    def description(self) -> str:
        """Returns the steps in words: `split 0 into 3, transpose [1, 0]`."""
        return ", ".join([*map(_words, self.steps), *([] if self.examples is None else [REORDERED])])


def _words(step: RecipeStep) -> str:
    return " ".join(f"{name} {value}" for name, value in step.spelling().items())


def in_order_of_blocks(axis: int, blocks: tuple[int, ...]) -> tuple[RecipeStep, ...]:
    """Returns the steps that put the equal blocks along an axis into an order; none without blocks."""
    return (Split(axis, len(blocks)), Reorder(blocks), Concatenate(axis)) if blocks else ()
