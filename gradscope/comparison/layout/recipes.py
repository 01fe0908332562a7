"""Recipes: how a counterpart is made of the candidate's tensors where it does not lie there as it is.

A recipe takes tensors of the candidate, as a list, through *steps*, and picks one of what comes out. Some steps work on
each tensor (transpose, reshape), some make many of one (split, unstack), some one of many (concatenate, stack). A
recipe without a step is the tensor itself. Steps are those of the parameter: to the gradients of several examples they
are done example by example.

Sharp edge: what is rearranged is held in memory whole, one tensor per thread; what is not is streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.naming import example_axes, printable, split_key
from gradscope.protocols import implements


class Step(Protocol):
    """One thing that is done to a list of arrays."""

    def apply(self, arrays: list[Array]) -> list[Array]:
        """The arrays it makes of some arrays.

        Raises:
            ValueError: It cannot be done to them; NumPy says why.
        """
        ...

    def spelling(self) -> dict[str, Json]:
        """It as a map file writes it."""
        ...


@dataclass(frozen=True, slots=True)
class Transpose:
    """New order of the axes, as `numpy.transpose` has it."""

    axes: tuple[int, ...]

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [array.transpose(self.axes) for array in arrays]

    @implements(Step)
    def spelling(self) -> dict[str, Json]:
        return {"transpose": list(self.axes)}


@dataclass(frozen=True, slots=True)
class Reshape:
    """New shape in C order; -1 once for what is left."""

    shape: tuple[int, ...]

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [array.reshape(self.shape) for array in arrays]

    @implements(Step)
    def spelling(self) -> dict[str, Json]:
        return {"reshape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Split:
    """Parts along an axis: so many of one size, or of the sizes given."""

    axis: int
    into: int | tuple[int, ...]

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [part for array in arrays for part in np.split(array, self._cuts(array), axis=self.axis)]

    @implements(Step)
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
    """The slices along an axis, which they lose."""

    axis: int

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [part for array in arrays for part in np.moveaxis(array, self.axis, 0)]

    @implements(Step)
    def spelling(self) -> dict[str, Json]:
        return {"unstack": self.axis}


@dataclass(frozen=True, slots=True)
class Concatenate:
    """All of them along an axis that they have."""

    axis: int

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.concatenate(arrays, axis=self.axis)]

    @implements(Step)
    def spelling(self) -> dict[str, Json]:
        return {"concatenate": self.axis}


@dataclass(frozen=True, slots=True)
class Stack:
    """All of them along a new axis."""

    axis: int

    @implements(Step)
    def apply(self, arrays: list[Array]) -> list[Array]:
        return [np.stack(arrays, axis=self.axis)]

    @implements(Step)
    def spelling(self) -> dict[str, Json]:
        return {"stack": self.axis}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a counterpart is made.

    Attributes:
        keys: The candidate's tensors that it is made of.
        steps: What is done to them.
        part: Which of the arrays that come out it is.
    """

    keys: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    part: int = 0

    @property
    def plain(self) -> bool:
        """Whether it is a tensor of the candidate as it lies there."""
        return not self.steps and len(self.keys) == 1

    def array(self, source: DumpSource) -> Array:
        """The counterpart.

        Raises:
            UsageError: A step cannot be done; which, and to what, is said.
            DumpError: A tensor is damaged.
        """
        return self.made_of([source.array(key) for key in self.keys])

    def made_of(self, arrays: list[Array]) -> Array:
        """What the steps make of arrays in the place of the candidate's tensors.

        Raises:
            UsageError: A step cannot be done; which, and to what, is said.
        """
        family, _ = split_key(self.keys[0])
        if self.plain or not example_axes(family) or any(array.shape[:1] < (1,) for array in arrays):
            return self._made_of(arrays)
        return np.stack([self._made_of(list(each)) for each in zip(*arrays, strict=False)])

    def _made_of(self, arrays: list[Array]) -> Array:
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
        if self.part >= len(arrays):
            raise UsageError(
                f"{printable(', '.join(self.keys))} gives {len(arrays)} tensors, part {self.part} is asked for"
            )
        return arrays[self.part]

    def description(self) -> str:
        """What is done, in words: `transpose [1, 0], part 2 of split 1`."""
        return ", ".join(map(_words, self.steps))


def _words(step: Step) -> str:
    return " ".join(f"{name} {value}" for name, value in step.spelling().items())
