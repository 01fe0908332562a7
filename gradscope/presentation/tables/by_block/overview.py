"""The overview is one table of a complete dump, or of a model, in a given number of lines, block by block.

Iterations of loops share a line. Where that is not short enough, so do blocks that repeat, and blocks close over their
parts, the innermost first; where even that is too long, lines in the middle are left out, and one line stands for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from gradscope.presentation.tables.by_block.block_cells import BlockFacts
from gradscope.presentation.tables.by_block.call_labels import call_labels
from gradscope.presentation.tables.by_block.contents import BlockTree, Contents
from gradscope.presentation.tables.by_block.folded_blocks import Block, Folding, Group
from gradscope.presentation.tables.table import Cell, Column, Line, Table

#: Blocks are opened, even though lines have to be left out, where they would fill less than this share of the room.
_TOO_FEW: Final = 1 / 3
#: So many blocks on one line are split to several lines where there is room, but to no more than these.
_LONG: Final = 24
_MOST_SPLIT: Final = 9
_NOTHING: Final = Contents()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A `Shown` is what the lines of an overview show.

    Attributes:
        title: The title of the table.
        cells: The functions that return the cells, by column.
        ranges: What several blocks on one line have in common, as a note.
    """

    title: str
    cells: Mapping[Column, Callable[[BlockFacts], Cell]]
    ranges: str


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """An `_Item` is what one line stands for: a group, or several that are left out.

    Attributes:
        name: Its name.
        groups: The groups.
        closed: Whether it also stands for the parts of the blocks.
    """

    name: str
    groups: tuple[Group, ...]
    closed: bool = True

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all groups."""
        return (block for group in self.groups for block in group.blocks)


class Overview:
    """An `Overview` makes tables with as many lines as there is room for.

    Args:
        tree: The blocks and their contents.
        shown: What the lines show.
        notes: The rules that found something in a tensor, by its key, the worst first.
    """

    def __init__(self, tree: BlockTree, shown: Shown, notes: Mapping[str, Sequence[str]]) -> None:
        self._tree = tree
        self._shown = shown
        self._labels = call_labels(tree)
        self._ranks = {key: rank for rank, key in enumerate(notes)}

    def table(self, room: int) -> Table:
        """Returns the table with the most detail that has at most so many lines.

        Args:
            room: The number of lines, at least 3.
        """
        items = self._items(room)
        several = any(len(group.blocks) > 1 for item in items for group in item.groups)
        columns = (Column(heading="name", kind="name"), *self._shown.cells, Column(heading="notes", kind="words"))
        return Table(
            title=self._shown.title,
            columns=columns,
            lines=tuple(map(self._line, items)),
            notes=(self._shown.ranges,) if several else (),
        )

    def _items(self, room: int) -> list[_Item]:
        items = self._parts(loops := Folding(loops_only=True), (self._tree.root,))
        while len(items) <= room and (further := self._further(loops, items)) is not None:
            items = further
        folding = loops
        if len(items) > room:
            items = self._closed_items(folding := Folding(loops_only=False), room)
        return _split_longest(folding, items, room)

    def _closed_items(self, folding: Folding, room: int) -> list[_Item]:
        items = self._parts(folding, (self._tree.root,))
        while (further := self._further(folding, items)) is not None:
            if len(further) > room and len(items) >= room * _TOO_FEW:
                break
            items = further
        items = self._opened_at_findings(folding, items, room)
        return items if len(items) <= room else self._without_middle(items, room)

    def _opened_at_findings(self, folding: Folding, items: list[_Item], room: int) -> list[_Item]:
        """Returns the items with the blocks opened in which something was found, as far as there is room."""
        at = 0
        while at < len(items):
            opened = self._opened(folding, items[at]) if any(map(self._found_inside, items[at].blocks)) else []
            if opened and len(items) - 1 + len(opened) <= room:
                items = [*items[:at], *opened, *items[at + 1 :]]
            at += 1
        return items

    def _found_inside(self, block: Block) -> bool:
        return any(self._contents(each).words for part in block.parts.values() for each in part.below())

    def _without_middle(self, items: Sequence[_Item], room: int) -> list[_Item]:
        """Returns as many items as there is room for: those with findings, and then the first and the last."""
        ranks = {at: rank for at, item in enumerate(items) if (rank := self._rank(item)) is not None}
        found = sorted(ranks, key=lambda at: ranks[at])
        ends = chain.from_iterable((at, len(items) - 1 - at) for at in range(room))
        kept: set[int] = set()
        for at in chain(found, ends):
            further = kept.union((at,), _around(items, at))
            if len(_with_gaps(items, further)) > room:
                break
            kept = further
        return _with_gaps(items, kept)

    def _parts(self, folding: Folding, blocks: tuple[Block, ...], path: str = "") -> list[_Item]:
        """Returns the parts of blocks, each of a single part in place of what holds nothing else."""
        items: list[_Item] = []
        for group in folding.groups(blocks, path):
            while len(group.blocks[0].parts) == 1 and not any(map(self._contents_of, group.blocks)):
                (group,) = folding.groups(group.blocks, group.name)  # noqa: PLW2901
            items.append(_Item(group.name, (group,)))
        return items

    def _opened(self, folding: Folding, item: _Item) -> list[_Item]:
        """Returns an item with those of its parts, or nothing where it is open, has no parts, or is state alone.

        What no layer owns, such as an optimizer's moments, is a tree as large as that of the parameters, and no way
        through the model: it is opened only where something was found in it.
        """
        blocks = tuple(item.blocks)
        if not item.closed or not blocks[0].parts:
            return []
        below = [self._contents(each) for block in blocks for each in block.below()]
        if all(each.is_state_alone for each in below) and not any(each.words for each in below):
            return []
        return [replace(item, closed=False), *self._parts(folding, blocks, item.name)]

    def _further(self, folding: Folding, items: Sequence[_Item]) -> list[_Item] | None:
        """Returns the items with every block opened by one level; None where all are open."""
        opened = [self._opened(folding, item) for item in items]
        if not any(opened):
            return None
        return [each for item, parts in zip(items, opened, strict=True) for each in (parts or [item])]

    def _rank(self, item: _Item) -> int | None:
        """Returns the rank of the worst finding in an item; None where there is none."""
        blocks = (each for block in item.blocks for each in (block.below() if item.closed else (block,)))
        keys = (key for block in blocks for key in self._contents(block).words)
        return min((self._ranks[key] for key in keys), default=None)

    def _contents_of(self, block: Block) -> Contents | None:
        return self._tree.contents.get(block)

    def _contents(self, block: Block) -> Contents:
        return self._contents_of(block) or _NOTHING

    def _facts(self, item: _Item) -> BlockFacts:
        instances = [list(block.below()) if item.closed else [block] for block in item.blocks]
        return BlockFacts(
            own=[self._contents(block) for block in item.blocks],
            instances=[[self._contents(each) for each in instance] for instance in instances],
        )

    def _name(self, item: _Item) -> str:
        """Returns its name, with the parameter that only its blocks use, where other calls of the layer do not."""
        labels = {self._labels.get(block, "") for block in item.blocks}
        label = labels.pop() if len(labels) == len(item.groups) == 1 else ""
        return f"{item.name} ({label})" if label else item.name

    def _line(self, item: _Item) -> Line:
        facts = self._facts(item)
        keys = dict.fromkeys(row.key for instance in facts.instances for each in instance for row in each.rows)
        cells = (self._name(item), *(cell(facts) for cell in self._shown.cells.values()), facts.words() or None)
        return Line(cells=cells, keys=tuple(keys))


def _around(items: Sequence[_Item], at: int) -> Iterator[int]:
    """Yields the positions of the open items whose part an item is."""
    path = items[at].name
    for position in range(at - 1, -1, -1):
        if path.startswith(f"{items[position].name}/"):
            yield position
            path = items[position].name


def _split_longest(folding: Folding, items: list[_Item], room: int) -> list[_Item]:
    """Returns the items with those of many blocks split where there is room: a trend over depth needs several lines."""
    long = [at for at, item in enumerate(items) if item.closed and len(item.groups[0].blocks) >= _LONG]
    spare = room - len(items)
    several = min(1 + spare // max(len(long), 1), _MOST_SPLIT)
    split = {at: [_Item(group.name, (group,)) for group in folding.split(items[at].groups[0], several)] for at in long}
    return [each for at, item in enumerate(items) for each in split.get(at, [item])]


def _with_gaps(items: Sequence[_Item], kept: set[int]) -> list[_Item]:
    """Returns the items that are kept, and one for those that are left out between two of them."""
    shown: list[_Item] = []
    missing: list[_Item] = []
    for at, item in enumerate(items):
        if at not in kept:
            missing.append(item)
            continue
        shown += [*_gap(missing), item]
        missing = []
    return [*shown, *_gap(missing)]


def _gap(missing: Sequence[_Item]) -> list[_Item]:
    if len(missing) < 2:
        return list(missing)
    groups = tuple(group for item in missing for group in item.groups)
    return [_Item(f"... {len(missing):,} more", groups, closed=all(item.closed for item in missing))]
