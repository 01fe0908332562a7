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
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipe_steps import REORDER, Mean, RecipeStep, Reorder, Sum
from gradscope.dump.interfaces import DumpSource
from gradscope.errors import UsageError
from gradscope.naming import example_axes, printable, split_key
from gradscope.naming.wording import counted

#: What the description of a recipe says of a batch whose examples are in another order.
REORDERED: Final = "examples in another order"

#: The most blocks whose order the description of a recipe lists.
_MOST_LISTED: Final = 24


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
        return not any(isinstance(step, Sum | Mean) for step in self.steps)

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
                    f"cannot apply {_as_written(step)} to {counted(len(shapes), 'tensor')} of shape "
                    f"{' and '.join(map(str, shapes))}, made of {printable(' and '.join(self.keys))}: {error}",
                    hint="correct the steps of the rule in the map file",
                ) from error
        return arrays

    def description(self) -> str:
        """Returns the steps in words: `split 0 into 3, transpose [1, 0]`."""
        return ", ".join([*map(_words, self.steps), *([] if self.examples is None else [REORDERED])])


def _words(step: RecipeStep) -> str:
    if isinstance(step, Reorder) and len(step.order) > _MOST_LISTED:
        return f"{REORDER} {len(step.order)} blocks"
    return " ".join(f"{name} {value}" for name, value in step.spelling().items())


def _as_written(step: RecipeStep) -> str:
    """Returns a step as a map file has it: `{ split = 0, into = 3 }`."""
    return f"{{ {', '.join(f'{name} = {value}' for name, value in step.spelling().items())} }}"
