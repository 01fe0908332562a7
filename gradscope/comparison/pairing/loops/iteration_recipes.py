"""`UnrolledLoops` proposes recipes for the outputs of a loop, and for slices of arrays that a loop scans over.

The proposals follow from the layers of a dump and the shapes of its tensors; no value is read. `scanned_with_unrolled`
has an example, and verifies the proposals by values.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from gradscope.comparison.layout.recipe_steps import RecipeStep, Reshape, Stack, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, PARAM, PARAM_GRAD, key_of, split_key
from gradscope.naming.numbering import NUMBER, number_of

#: The layers of one loop's iterations in the order of their numbers.
_Iterations: TypeAlias = Sequence[Layer]

#: The families of a tensor that an iteration may slice, by the family of the slice.
_SLICED_FAMILIES: Final = {
    ACTIVATION: (PARAM, ACTIVATION, INPUT),
    ACTIVATION_GRAD: (PARAM_GRAD, ACTIVATION_GRAD, INPUT_GRAD),
}

_NUMBER: Final = re.compile(rf"\[({NUMBER})\]")


class UnrolledLoops:
    """UnrolledLoops proposes recipes for loop outputs and for slices of scanned arrays, within one dump.

    Args:
        source: The dump.
    """

    def __init__(self, source: DumpSource) -> None:
        layers = source.manifest.layers
        self._source = source
        self._known = frozenset(source.keys())
        self._loops = _loops_by_output(layers)
        self._operations = {name: layer for layer in layers if layer.operation for name in layer.outputs}

    def recipes(self, key: str) -> Iterator[Recipe]:
        """Yields recipes that may make a value or gradient from other tensors of its dump.

        Args:
            key: The key of an owner.

        Yields:
            Recipes over keys of the dump whose results have the tensor's shape.
        """
        family, name = split_key(key)
        if family in _SLICED_FAMILIES:
            shape = self._source.entry(key).shape
            yield from self._of_output(family, name, shape)
            yield from self._of_slice(family, name, shape)

    def _of_output(self, family: str, name: str, shape: tuple[int, ...]) -> Iterator[Recipe]:
        """Yields recipes of a loop output: an output of the last iteration, or a stack of one output of each."""
        for iterations in self._loops.get(name, ()):
            for output in max(iterations, key=lambda iteration: iteration.index).outputs:
                if self._shapes(family, [output]) == {shape}:
                    yield Recipe(keys=(key_of(family, output),))
            for outputs in zip(*(iteration.outputs for iteration in iterations), strict=False):
                if shape[:1] == (len(outputs),) and self._shapes(family, outputs) == {shape[1:]}:
                    yield Recipe(keys=tuple(key_of(family, output) for output in outputs), steps=(Stack(0),))

    def _of_slice(self, family: str, name: str, shape: tuple[int, ...]) -> Iterator[Recipe]:
        """Yields recipes of a slice: `x[i, j]` of an array `x` that the operation reads in iteration `[i][j]`."""
        numbers = tuple(map(int, _NUMBER.findall(name)))
        ranges = [numbers[first:last] for first, last in combinations(range(len(numbers) + 1), 2)]
        for key in self._read_by(family, name) if numbers else ():
            array_shape = self._source.entry(key).shape
            for index in ranges:
                stacked, single = array_shape[: len(index)], array_shape[len(index) :]
                if _is_within(index, stacked) and math.prod(single) == math.prod(shape):
                    steps: tuple[RecipeStep, ...] = (Unstack(0),) * len(index)
                    steps = steps if single == shape else (*steps, Reshape(shape))
                    yield Recipe(keys=(key,), steps=steps, part=_position(index, stacked))

    def _read_by(self, family: str, name: str) -> Iterator[str]:
        """Yields the keys that an operation with one operand reads, then those that its operand's operation reads."""
        seen: set[str] = set()
        while name not in seen and (layer := self._operations.get(name)) is not None:
            seen.add(name)
            read = (*layer.params, *layer.inputs)
            if len(read) != 1:
                return
            (name,) = read
            yield from (key for each in _SLICED_FAMILIES[family] if (key := key_of(each, name)) in self._known)

    def _shapes(self, family: str, names: Iterable[str]) -> set[tuple[int, ...] | None]:
        """Returns the shapes of some tensors; None is among them where the dump lacks one."""
        keys = (key_of(family, name) for name in names)
        return {self._source.entry(key).shape if key in self._known else None for key in keys}


def _loops_by_output(layers: Iterable[Layer]) -> dict[str, list[_Iterations]]:
    """Returns the iterations of the loops that output a value, by the name of the value."""
    iterations: defaultdict[tuple[str, str], dict[int, Layer]] = defaultdict(dict)
    outputs: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        outputs[layer.path] = layer.outputs
        if layer.parent is not None and (number := _iteration_number(layer.path, layer.parent)) is not None:
            iterations[layer.parent, layer.path.rpartition("]")[2]][number] = layer
    found: defaultdict[str, list[_Iterations]] = defaultdict(list)
    for (loop, _), numbered in iterations.items():
        for name in outputs.get(loop, ()):
            found[name].append([layer for _, layer in sorted(numbered.items())])
    return found


def _iteration_number(path: str, parent: str) -> int | None:
    """Returns the number of an iteration of the layer around it, 3 for `block[3]` in `block`; None for other layers."""
    start, _, rest = path.rpartition("[")
    number = rest.partition("]")[0]
    return number_of(number) if start == parent.partition("#")[0] else None


def _is_within(index: Sequence[int], shape: Sequence[int]) -> bool:
    return len(index) == len(shape) and all(number < length for number, length in zip(index, shape, strict=True))


def _position(index: Sequence[int], shape: Sequence[int]) -> int:
    """Returns the position in C order of an index into an array of a shape."""
    position = 0
    for number, length in zip(index, shape, strict=True):
        position = position * length + number
    return position
