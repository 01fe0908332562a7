"""Labels of the calls of a layer tell them apart by the parameter that each call alone uses.

A model that opens no scope has its layers' names from the paths of parameters: `blocks/0` and `blocks/0#2` are two
products, with two kernels in `blocks/0`. The labels are the names of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from gradscope.presentation.tables.by_block.contents import BlockTree, Contents
from gradscope.presentation.tables.by_block.folded_blocks import Block
from gradscope.presentation.tables.dump_rows import Row


def call_labels(tree: BlockTree) -> dict[Block, str]:
    """Returns the last component of the name of a parameter for each block that has one which tells it apart.

    It is the one with the most axes among those that no other call of the same layer uses; a block has none where
    several have as many axes, where it has parts, and where there is one call only.
    """
    labels: dict[Block, str] = {}
    for block in tree.root.below():
        calls: dict[str, list[Block]] = {}
        for part in block.parts.values():
            calls.setdefault(part.component.partition("#")[0], []).append(part)
        for several in calls.values():
            labels.update(_labels(several, tree.contents))
    return labels


def _labels(calls: Sequence[Block], contents: Mapping[Block, Contents]) -> Iterator[tuple[Block, str]]:
    known = [{row.name: _axes(row) for row in contents[call].parameters} if call in contents else {} for call in calls]
    users = Counter(chain.from_iterable(known))
    for call, used in zip(calls, known, strict=True):
        own = {name: axes for name, axes in used.items() if users[name] == 1}
        most = max(own.values(), default=0)
        largest = [name for name, axes in own.items() if axes == most]
        if len(calls) > 1 and len(largest) == 1 and not call.parts:
            yield call, largest[0].rpartition("/")[2]


def _axes(row: Row) -> int:
    shape = row.value("shape")
    return len(shape) if isinstance(shape, list) else 0
