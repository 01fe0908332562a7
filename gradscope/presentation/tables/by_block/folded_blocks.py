"""Blocks are the tree of layers, in which blocks that repeat share a line, as the iterations of a loop do.

    stage1_block1                 stage1_block1
    stage1_block2                 stage1_block[2..3]
    stage1_block2/conv1     ->    stage1_block[2..3]/conv1
    stage1_block3
    stage1_block3/conv1

Neighbours repeat where their names differ in one number that counts up and the trees below them are alike. Several
neighbours may repeat together: `conv1, relu1, conv2, relu2` is `conv[1..2], relu[1..2]`. Only neighbours in execution
order share a line, so that the lines from top to bottom are still the way through the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any, Final

from gradscope.naming.numbering import NUMBER

_NUMBER: Final = re.compile(rf"({NUMBER})")
_ITERATION: Final = re.compile(rf"\[({NUMBER})\]")
#: The most components of a path; a name from a file may have any number, and the tree below a block is walked
#: recursively.
_MOST_COMPONENTS: Final = 64
#: The most neighbours that repeat together.
_LONGEST_PERIOD: Final = 16


_NO_PARTS: Final[Mapping[str, Block]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Block:
    """A `Block` is a layer, or another name of a dump, with those below it.

    Attributes:
        component: The last component of its path.
        parts: The blocks below it by component, in execution order.
    """

    component: str
    parts: Mapping[str, Block] = field(default_factory=lambda: _NO_PARTS)

    def at(self, path: str) -> Block:
        """Returns the block with a path below this one, which is added where there is none."""
        block = self
        for component in components_of(path):
            part = block.parts.get(component)
            if part is None:
                parts = block.parts if isinstance(block.parts, dict) else {}
                part = parts[component] = Block(component)
                block.parts = parts  # most blocks have none, and share an empty mapping
            block = part
        return block

    def below(self) -> Iterator[Block]:
        """Yields this block and all below it."""
        yield self
        for part in self.parts.values():
            yield from part.below()


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A `Group` is the blocks that share a line.

    Attributes:
        name: Their common path, `encoder/block[0..11]`.
        blocks: The blocks, in execution order, whose trees are alike.
    """

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A `_Numbered` is some blocks whose components differ in numbers only.

    Attributes:
        key: What blocks that repeat have in common: the component without its numbers, and the trees below.
        ranges: The lowest and the highest value of each number.
        loops: Which of the numbers are iterations.
        positions: Positions of the blocks among their neighbours.
    """

    key: tuple[str, int]
    ranges: tuple[tuple[int, int], ...]
    loops: tuple[bool, ...]
    positions: tuple[int, ...]

    def repeats_in(self, other: _Numbered) -> bool:
        """Returns whether the other ones continue these: one number counts up, and all else is equal.

        What shares a line already repeats again in loops only: the stages of a network are no loop.
        """
        if self.key != other.key:
            return False
        differing = [at for at, own in enumerate(self.ranges) if own != other.ranges[at]]
        if len(differing) != 1 or other.ranges[differing[0]][0] != self.ranges[differing[0]][1] + 1:
            return False
        return self.loops[differing[0]] or len(self.positions) == len(other.positions) == 1


class Folding:
    """A `Folding` groups blocks that repeat.

    Args:
        loops_only: Whether only the iterations of loops share a line, and other blocks have lines of their own.
    """

    def __init__(self, *, loops_only: bool) -> None:
        self._loops_only = loops_only
        self._shapes: dict[tuple[tuple[str, int], ...], int] = {}
        self._shape_of: dict[Block, int] = {}
        self._numbers = count()
        self._known: dict[Any, Any] = {}

    def groups(self, blocks: Sequence[Block], path: str = "") -> list[Group]:
        """Returns the groups of the parts of some blocks.

        Args:
            blocks: Blocks whose trees are alike.
            path: Their common path; "" for the root.

        Returns:
            The groups, in execution order.
        """
        parts = [list(block.parts.values()) for block in blocks]
        folded = _folded([self._numbered(part, at) for at, part in enumerate(parts[0])])
        return [
            _group(tuple(own[at] for own in parts for at in numbered.positions), path, loops_only=self._loops_only)
            for numbered in folded
        ]

    def split(self, group: Group, several: int) -> list[Group]:
        """Returns a group as several groups of neighbours, each of other numbers; else as it is.

        Blocks that differ in more than one number stay together, and so do those of several parents, which have a line.
        """
        blocks = group.blocks
        numbers = [tuple(map(_value, _split(block.component, loops_only=self._loops_only)[1])) for block in blocks]
        several_parents = len(set(numbers)) < len(numbers)
        if several_parents or sum(len(set(each)) > 1 for each in zip(*numbers, strict=True)) != 1:
            return [group]
        bounds = [len(blocks) * at // several for at in range(several + 1)]
        path = group.name.rpartition("/")[0]
        parts = (blocks[start:end] for start, end in pairwise(bounds))
        return [_group(part, path, loops_only=self._loops_only) for part in parts if part]

    def _numbered(self, block: Block, position: int) -> _Numbered:
        template, numbers = _split(block.component, loops_only=self._loops_only)
        ranges = tuple((value, value) for value in map(_value, numbers))
        key, loops = (template, self._shape(block)), tuple(map(_is_iteration, numbers))
        # Neighbours that repeat have equal ones, which they share: there may be a hundred thousand.
        known = self._known
        return _Numbered(known.setdefault(key, key), ranges, known.setdefault(loops, loops), (position,))

    def _shape(self, block: Block) -> int:
        """Returns a number that blocks have in common whose trees are alike."""
        if block not in self._shape_of:
            below = tuple(
                (_split(part.component, loops_only=self._loops_only)[0], self._shape(part))
                for part in block.parts.values()
            )
            if below not in self._shapes:
                self._shapes[below] = next(self._numbers)
            self._shape_of[block] = self._shapes[below]
        return self._shape_of[block]


def components_of(path: str) -> list[str]:
    """Returns the components of a path; the last one has the rest of a path that is very long."""
    return path.split("/", _MOST_COMPONENTS)


def _split(component: str, *, loops_only: bool) -> tuple[str, list[re.Match[str]]]:
    """Returns a component without the numbers that may differ where blocks repeat, and these."""
    if loops_only:
        return _ITERATION.sub("[]", component), list(_ITERATION.finditer(component))
    # The first of several calls has no mark, and the second is `#2`.
    marked = component if "#" in component else f"{component}#1"
    return _NUMBER.sub("0", marked), list(_NUMBER.finditer(marked))


def _folded(neighbours: list[_Numbered]) -> list[_Numbered]:
    """Returns neighbours with those that repeat folded."""
    before = 0
    while len(neighbours) != before:
        before = len(neighbours)
        # What repeats by itself comes first. Of nested loops the inner one folds in the first round.
        neighbours = list(_fold_once(list(_fold_once(neighbours, longest=1)), longest=_LONGEST_PERIOD))
    return neighbours


def _fold_once(neighbours: Sequence[_Numbered], *, longest: int) -> Iterator[_Numbered]:
    at = 0
    while at < len(neighbours):
        found = [(period, _repeats(neighbours, at, period)) for period in range(1, longest + 1)]
        period, times = max(found, key=lambda each: (each[0] * each[1] if each[1] > 1 else 0, -each[0]))
        for first in range(at, at + period):
            yield _joined(neighbours[first : at + period * times : period])
        at += period * times


def _repeats(neighbours: Sequence[_Numbered], at: int, period: int) -> int:
    """Returns how often the neighbours from a position on repeat, as many together as the period."""
    after = at + period
    while after < len(neighbours) and neighbours[after - period].repeats_in(neighbours[after]):
        after += 1
    return (after - at) // period


def _joined(repeated: Sequence[_Numbered]) -> _Numbered:
    first, last = repeated[0], repeated[-1]
    ranges = tuple((low, high) for (low, _), (_, high) in zip(first.ranges, last.ranges, strict=True))
    return replace(first, ranges=ranges, positions=tuple(at for each in repeated for at in each.positions))


def _group(blocks: tuple[Block, ...], path: str, *, loops_only: bool) -> Group:
    component = blocks[0].component if len(blocks) == 1 else _common(blocks, loops_only=loops_only)
    return Group(f"{path}/{component}" if path else component, blocks)


def _common(blocks: Sequence[Block], *, loops_only: bool) -> str:
    """Returns the common component of several blocks, with ranges in place of the numbers that differ."""
    columns = list(zip(*(_split(block.component, loops_only=loops_only)[1] for block in blocks), strict=True))
    component, end = "", 0
    for numbers in columns:
        first, low, high = numbers[0], min(map(_value, numbers)), max(map(_value, numbers))
        component += first.string[end : first.start(1)]
        component += first[1] if low == high else f"{low}..{high}" if _is_iteration(first) else f"[{low}..{high}]"
        end = first.end(1)
    text = component + (columns[0][0].string[end:] if columns else blocks[0].component)
    return text if any("#" in block.component for block in blocks) else text.removesuffix("#1")


def _value(number: re.Match[str]) -> int:
    return int(number[1])


def _is_iteration(number: re.Match[str]) -> bool:
    before, after = number.string[: number.start(1)], number.string[number.end(1) :]
    return before.endswith("[") and after.startswith("]")
