"""Contents are the rows that belong to each block of a dump: values and gradients, parameters, state.

A parameter belongs to the innermost layers that use it, and state to the layer whose parameters are next to it, or that
has its path. What belongs to no layer is a block of its own, whose path is its key: `param/spare/kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.layer_graph import layers_around
from gradscope.dump.manifest.manifest import Layer
from gradscope.presentation.tables.by_block.folded_blocks import Block, components_of
from gradscope.presentation.tables.dump_rows import Row, value_family

#: The families whose tensors belong to the layer that has their path, with or without the name of a collection.
_STATE: Final = (naming.STATE, naming.AUX)
#: The families whose rows are in the order in which they are computed.
_IN_ORDER: Final = (naming.INPUT, naming.ACTIVATION)


_NO_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Contents:
    """`Contents` are the rows of one block, without those of the blocks below it.

    Attributes:
        values: Its outputs.
        gradients: The gradients of the loss with respect to them.
        parameters: Its parameters.
        parameter_gradients: Their gradients.
        state: Its state, and auxiliary outputs that have its path.
        words: The rules that found something in these tensors, by the tensor's key.
    """

    # One empty list for all that have none: a dump may have a hundred thousand blocks, most of one or two rows.
    values: Sequence[Row] = ()
    gradients: Sequence[Row] = ()
    parameters: Sequence[Row] = ()
    parameter_gradients: Sequence[Row] = ()
    state: Sequence[Row] = ()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_WORDS)

    @property
    def is_state_alone(self) -> bool:
        """Whether there are no rows but those of state."""
        return not any((self.values, self.gradients, self.parameters, self.parameter_gradients))

    @property
    def rows(self) -> Iterator[Row]:
        """All of its rows."""
        for each in (self.values, self.gradients, self.parameters, self.parameter_gradients, self.state):
            yield from each


@dataclass(frozen=True, slots=True, eq=False)
class BlockTree:
    """A `BlockTree` is the blocks of a dump, or of a model, and their contents."""

    root: Block
    contents: Mapping[Block, Contents]


def block_tree(rows: Sequence[Row], layers: Sequence[Layer], notes: Mapping[str, Sequence[str]]) -> BlockTree:
    """Returns the blocks of a dump; every tensor with numbers to show is in the contents of at least one.

    Args:
        rows: Its rows, in execution order.
        layers: Its layers.
        notes: The rules that found something in a tensor, by its key.

    Returns:
        The tree, in the order of the rows.
    """
    making = _Making(notes)
    shown = [row for row in rows if row.is_measured or row.key in notes]
    blocks = {row.name: making.root.at(_place(row)) for row in shown if value_family(row.family) in _IN_ORDER}
    users = _users(layers, blocks)
    beside = {_parent(name): found for name, found in users.items()}
    for row in shown:
        owners: list[Block] = []
        if value_family(row.family) == naming.PARAM:
            owners = users.get(row.name, [])
        elif row.family in _STATE:
            owners = _neighbours(row.name, beside, blocks)
        for block in owners or [making.root.at(_place(row))]:
            making.add(block, row)
    return BlockTree(making.root, making.contents)


def layer_tree(rows: Sequence[Row]) -> BlockTree:
    """Returns the blocks of a model that has not run: a row for each of its layers, in execution order."""
    making = _Making({})
    for row in rows:
        making.add(making.root.at(row.name), row)
    return BlockTree(making.root, making.contents)


def _place(row: Row) -> str:
    """Returns the path of a row's block: a layer's is its name, and that of all else the key of the value."""
    family = value_family(row.family)
    return row.name if family == naming.ACTIVATION else naming.key_of(family, row.name)


class _Making:
    def __init__(self, notes: Mapping[str, Sequence[str]]) -> None:
        self.root = Block("")
        self.contents: dict[Block, Contents] = {}
        self._notes = notes

    def add(self, block: Block, row: Row) -> None:
        contents = self.contents.get(block)
        if contents is None:
            contents = self.contents[block] = Contents()
        gradient = naming.is_gradient(row.family)
        if value_family(row.family) == naming.PARAM and gradient:
            contents.parameter_gradients = _with(contents.parameter_gradients, row)
        elif value_family(row.family) == naming.PARAM:
            contents.parameters = _with(contents.parameters, row)
        elif row.family in _STATE:
            contents.state = _with(contents.state, row)
        elif gradient:
            contents.gradients = _with(contents.gradients, row)
        else:
            contents.values = _with(contents.values, row)
        if row.key in self._notes:
            words = contents.words if isinstance(contents.words, dict) else {}
            words[row.key] = tuple(self._notes[row.key])
            contents.words = words


def _with(rows: Sequence[Row], row: Row) -> list[Row]:
    """Returns some rows with one more; a list that is there already grows."""
    found = rows if isinstance(rows, list) else [*rows]
    found.append(row)
    return found


def _users(layers: Sequence[Layer], blocks: Mapping[str, Block]) -> dict[str, list[Block]]:
    """Returns the blocks to which each parameter belongs: those of the innermost layers that use it."""
    by_path = {layer.path: layer for layer in layers}
    around = {layer.path: [each.path for each in layers_around(layer, by_path)] for layer in layers if layer.params}
    users: dict[str, list[Layer]] = {}
    for layer in layers:
        for name in layer.params:
            users.setdefault(name, []).append(layer)
    paths: dict[str, dict[str, None]] = {}
    for name, found in users.items():
        outer = {path for layer in found for path in around[layer.path]}
        for layer in found:
            places = (_nearest(path, blocks) for path in (layer.path, *around[layer.path]))
            shown = next((place for place in places if place is not None), None)
            if layer.path not in outer and shown is not None:
                paths.setdefault(name, {})[shown] = None
    return {name: [blocks[path] for path in _innermost(found)] for name, found in paths.items()}


def _nearest(path: str, blocks: Mapping[str, Block]) -> str | None:
    """Returns the path, or the nearest around it, that is a block."""
    while path not in blocks:
        path = _parent(path)
        if not path:
            return None
    return path


def _innermost(paths: Mapping[str, None]) -> list[str]:
    around = {parent for path in paths for parent in _parents(path)}
    return [path for path in paths if path not in around]


def _parents(path: str) -> Iterator[str]:
    for _ in components_of(path):
        path = _parent(path)
        yield path


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _neighbours(name: str, beside: Mapping[str, list[Block]], blocks: Mapping[str, Block]) -> list[Block]:
    """Returns the blocks to which a state belongs; its name may begin with the name of its collection."""
    parent = _parent(name)
    for place in (parent, parent.partition("/")[2]):
        if place in beside:
            return beside[place]
        if place in blocks:
            return [blocks[place]]
    return []
