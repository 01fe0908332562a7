"""The tree of layers as content has each block with the numbers of the terminal's overview, and the flow of data."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.record import Json
from gradscope.presentation.page.content.json_values import Keys, lists, shortened
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.page.content.table_content import cell_content
from gradscope.presentation.tables.by_block.block_cells import CELLS, BlockFacts
from gradscope.presentation.tables.by_block.contents import BlockTree, Contents, block_tree
from gradscope.presentation.tables.by_block.folded_blocks import Block
from gradscope.presentation.tables.dump_rows import Row
from gradscope.presentation.tables.table import Cell, Column

_NOTHING: Final = Contents()
#: So many blocks have numbers of all that is in them; of more, only their own.
_MOST_SUMMED: Final = 6_000


def blocks_content(
    rows: Sequence[Row],
    layers: Sequence[Layer],
    notes: Mapping[str, Sequence[str]],
    keys: Keys,
    errors: Mapping[str, float] = MappingProxyType({}),
) -> Streamed:
    """Returns the tree of the blocks of a dump as content, each part of which is made when it is written.

    Args:
        rows: The rows of the dump, in execution order.
        layers: Its layers.
        notes: The rules that found something in a tensor, by its key.
        keys: Numbers the tensors.
        errors: Of a comparison, the error in each tensor, by its key; a column has the largest in each block.

    Returns:
        `names` and `parents` (the position of the block around; -1 at the top) by block, `keys` of its tensors, `words`
            of the rules that found something in it or below, `columns` with their `cells`, and `flow`: for each block
            the positions of its siblings whose values it reads.
    """
    tree = block_tree(rows, layers, notes)
    blocks, parents = _laid_out(tree.root)
    facts = _AllFacts(tree, blocks)
    own = ((row.key for row in tree.contents.get(block, _NOTHING).rows) for block in blocks)
    return {
        "names": (shortened(block.component) for block in blocks),
        "parents": iter(parents),
        "keys": lists(map(keys.number, each) for each in own),
        "words": (", ".join(each.words()) for each in facts),
        "columns": chain(_errors(facts, errors), _columns(facts)),
        "flow": _flow(blocks, parents, layers),
    }


def _laid_out(root: Block) -> tuple[list[Block], array[int]]:
    """Returns all blocks but the root, each after the one around it, with the position of that one."""
    blocks: list[Block] = []
    parents = array("q")
    pending = [(part, -1) for part in reversed([*root.parts.values()])]
    while pending:
        block, parent = pending.pop()
        pending += [(part, len(blocks)) for part in reversed([*block.parts.values()])]
        blocks.append(block)
        parents.append(parent)
    return blocks, parents


class _AllFacts:
    """_AllFacts has the contents of every block; where these are many, they are looked up anew each time."""

    def __init__(self, tree: BlockTree, blocks: Sequence[Block]) -> None:
        self._contents, self._blocks = tree.contents, blocks
        self._known = [self._facts([*each.below()]) for each in blocks] if len(blocks) <= _MOST_SUMMED else None

    def __iter__(self) -> Iterator[BlockFacts]:
        return iter(self._known) if self._known is not None else (self._facts([each]) for each in self._blocks)

    def _facts(self, instance: Sequence[Block]) -> BlockFacts:
        found = [self._contents.get(each, _NOTHING) for each in instance]
        return BlockFacts(own=found[:1], instances=[found])


def _errors(facts: Iterable[BlockFacts], errors: Mapping[str, float]) -> Iterator[Streamed]:
    if errors:
        found = ([errors.get(row.key) for instance in each.instances for part in instance for row in part.rows]
                 for each in facts)  # fmt: skip
        worst = [max((error for error in each if error is not None), default=None) for each in found]
        yield {"name": "rel_l2", "kind": "number", "cells": map(cell_content, worst)}


def _columns(facts: Iterable[BlockFacts]) -> Iterator[Streamed]:
    found: dict[Column, list[Cell]] = {column: [] for column in CELLS}
    for each in facts:  # once, because those of very many blocks are looked up anew each time
        for column, cell in CELLS.items():
            found[column].append(cell(each))
    for column, cells in found.items():
        if column.has_values(cells):
            yield {"name": column.full_heading, "kind": column.kind, "cells": map(cell_content, cells)}


def _flow(blocks: Sequence[Block], parents: Sequence[int], layers: Sequence[Layer]) -> Iterator[Json]:
    """Yields for each block the positions of the blocks beside it, whose values it reads."""
    read: defaultdict[int, dict[int, None]] = defaultdict(dict)
    if layers:  # or none is known to read a value
        positions = _positions(blocks, parents)
        made_by = {name: layer.path for layer in layers for name in layer.outputs}
        for layer in layers:
            for name in layer.inputs:
                pair = _siblings(made_by.get(name, name), layer.path, positions, parents)
                if pair is not None:
                    read[pair[1]][pair[0]] = None
    yield from lists(read.get(block, ()) for block in range(len(blocks)))


def _positions(blocks: Sequence[Block], parents: Sequence[int]) -> dict[str, int]:
    """Returns the position of each block by its path."""
    paths: list[str] = []
    for block, parent in zip(blocks, parents, strict=True):
        paths.append(block.component if parent < 0 else f"{paths[parent]}/{block.component}")
    return {path: at for at, path in enumerate(paths)}


def _siblings(maker: str, reader: str, positions: Mapping[str, int], parents: Sequence[int]) -> tuple[int, int] | None:
    """Returns the two blocks beside each other that a value goes between; None where there are none."""
    if maker not in positions or reader not in positions:
        return None
    beside = {parent: block for block, parent in _upwards(positions[maker], parents)}
    block, parent = next(each for each in _upwards(positions[reader], parents) if each[1] in beside)
    return None if beside[parent] == block else (beside[parent], block)


def _upwards(block: int, parents: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields a block and those around it, each with the block around."""
    while block >= 0:
        yield block, parents[block]
        block = parents[block]
