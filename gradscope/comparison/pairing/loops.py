"""Loops: what the layers of a dump say about which tensors a loop put together, or cut out of one.

Nothing here looks at a value: what is said of a tensor is where it may come from, in shapes that fit.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from gradscope.comparison.layout.recipes import Recipe, Reshape, Stack, Step, Unstack
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, PARAM, PARAM_GRAD, key_of, split_key

#: The turns of one loop in the order of their numbers.
_Turns: TypeAlias = Sequence[Layer]

#: The families of what a turn may be handed, by that of what it makes of it.
_HANDED_IN: Final = {
    ACTIVATION: (PARAM, ACTIVATION, INPUT),
    ACTIVATION_GRAD: (PARAM_GRAD, ACTIVATION_GRAD, INPUT_GRAD),
}

_TURN: Final = re.compile(r"\[(\d+)\]")


class Loops:
    """What the layers of a dump say about its loops.

    Args:
        source: The dump.
    """

    def __init__(self, source: DumpSource) -> None:
        layers = source.manifest.layers
        self._source = source
        self._known = frozenset(source.keys())
        self._around = _loops_around(layers)
        self._operations = {name: layer for layer in layers if layer.operation for name in layer.outputs}

    def recipes(self, key: str) -> Iterator[Recipe]:
        """What a value or gradient may be made of in its own dump by a loop.

        Args:
            key: The key of an owner.

        Yields:
            Recipes that give its shape, of keys of the dump.
        """
        family, name = split_key(key)
        if family in _HANDED_IN:
            shape = self._source.entry(key).shape
            yield from self._handed_out(family, name, shape)
            yield from self._handed_in(family, name, shape)

    def _handed_out(self, family: str, name: str, shape: tuple[int, ...]) -> Iterator[Recipe]:
        """An output of the turn that ran last, or one of every turn's."""
        for turns in self._around.get(name, ()):
            for output in max(turns, key=lambda turn: turn.index).outputs:
                if self._shapes(family, [output]) == {shape}:
                    yield Recipe(keys=(key_of(family, output),))
            for outputs in zip(*(turn.outputs for turn in turns), strict=False):
                if shape[:1] == (len(outputs),) and self._shapes(family, outputs) == {shape[1:]}:
                    yield Recipe(keys=tuple(key_of(family, output) for output in outputs), steps=(Stack(0),))

    def _handed_in(self, family: str, name: str, shape: tuple[int, ...]) -> Iterator[Recipe]:
        """A slice of what an operation in a turn reads, by the numbers of the turns around it."""
        turns = tuple(map(int, _TURN.findall(name)))
        ranges = [turns[first:last] for first, last in combinations(range(len(turns) + 1), 2)]
        for key in self._read_by(family, name) if turns else ():
            whole = self._source.entry(key).shape
            for numbers in ranges:
                stacked, single = whole[: len(numbers)], whole[len(numbers) :]
                if _lies_in(numbers, stacked) and math.prod(single) == math.prod(shape):
                    steps: tuple[Step, ...] = (Unstack(0),) * len(numbers)
                    steps = steps if single == shape else (*steps, Reshape(shape))
                    yield Recipe(keys=(key,), steps=steps, part=_place(numbers, stacked))

    def _read_by(self, family: str, name: str) -> Iterator[str]:
        """What an operation with one operand reads, what the operation reads that made that, and so on."""
        seen: set[str] = set()
        while name not in seen and (layer := self._operations.get(name)) is not None:
            seen.add(name)
            read = (*layer.params, *layer.inputs)
            if len(read) != 1:
                return
            (name,) = read
            yield from (key for each in _HANDED_IN[family] if (key := key_of(each, name)) in self._known)

    def _shapes(self, family: str, names: Iterable[str]) -> set[tuple[int, ...] | None]:
        """The shapes that some tensors have; None among them where the dump has no such entry."""
        keys = (key_of(family, name) for name in names)
        return {self._source.entry(key).shape if key in self._known else None for key in keys}


def _loops_around(layers: Iterable[Layer]) -> dict[str, list[_Turns]]:
    """The turns of the loops that hand out a value, by its name."""
    turns: defaultdict[tuple[str, str], dict[int, Layer]] = defaultdict(dict)
    outputs: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        outputs[layer.path] = layer.outputs
        if layer.parent is not None and (number := _turn(layer.path, layer.parent)) is not None:
            turns[layer.parent, layer.path.rpartition("]")[2]][number] = layer
    found: defaultdict[str, list[_Turns]] = defaultdict(list)
    for (loop, _), numbered in turns.items():
        for name in outputs.get(loop, ()):
            found[name].append([layer for _, layer in sorted(numbered.items())])
    return found


def _turn(path: str, around: str) -> int | None:
    """Which turn of the layer around it a layer is; None where it is none: `block[3]` is one of `block`."""
    start, _, rest = path.rpartition("[")
    number = rest.partition("]")[0]
    return int(number) if start == around.partition("#")[0] and number.isdecimal() else None


def _lies_in(numbers: Sequence[int], shape: Sequence[int]) -> bool:
    return len(numbers) == len(shape) and all(number < length for number, length in zip(numbers, shape, strict=True))


def _place(numbers: Sequence[int], shape: Sequence[int]) -> int:
    """Which in C order of the slices of a stack some numbers are."""
    place = 0
    for number, length in zip(numbers, shape, strict=True):
        place = place * length + number
    return place
