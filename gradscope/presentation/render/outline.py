"""An outline is a list of paths in which the components that neighbours share are written once.

    stage1_block1                 stage1_block1
    stage1_block1/conv1             conv1
    stage1_block1/bn1               bn1

A line is indented under the nearest line above it whose path begins its own. Where there is no such line but several
neighbours begin alike, a *header* is added: a line with a name and nothing else. So the full path can always be read:
the label, and before it the labels of the lines that it is indented under.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

_Path: TypeAlias = tuple[str, ...]

#: The fewest neighbours that share a header: for two, the header is as long as what it saves.
_WORTH_A_HEADER: Final = 3
INDENT: Final = "  "


class Item(NamedTuple):  # which is made in a fifth of a dataclass's time, once for each line
    """An `Item` is one line of an outline.

    Attributes:
        depth: The number of lines that it is indented under.
        label: The components of the path that those lines do not have.
        position: Position of the path among the given ones; None for a header.
    """

    depth: int
    label: str
    position: int | None


def outline(names: Sequence[str]) -> list[Item]:
    """Returns the outline of some paths.

    Args:
        names: Paths of components joined by `/`, in the order to be kept.

    Returns:
        One item per path, in order, with headers between them.
    """
    paths = [tuple(name.split("/")) for name in names]
    items: list[Item] = []
    above: list[_Path] = []
    for position, path in enumerate(paths):
        while above and not _begins(above[-1], path):
            above.pop()
        while (header := _header(paths, position, above)) is not None:
            items.append(_item(header, above, None))
            above.append(header)
        items.append(_item(path, above, position))
        above.append(path)
    return items


def _item(path: _Path, above: Sequence[_Path], position: int | None) -> Item:
    shared = len(above[-1]) if above else 0
    return Item(len(above), "/".join(path[shared:]), position)


def _begins(prefix: _Path, path: _Path) -> bool:
    """Returns whether `prefix` is a beginning of `path`, and not all of it."""
    return len(prefix) < len(path) and path[: len(prefix)] == prefix


def _header(paths: Sequence[_Path], position: int, above: Sequence[_Path]) -> _Path | None:
    """Returns the longest prefix, beyond the last line above, that enough paths from a position on share."""
    path, shared = paths[position], len(above[-1]) if above else 0
    sharing = _run(paths, position, path[: shared + 1])
    if sharing < _WORTH_A_HEADER or shared + 1 >= len(path):
        return None
    length = shared + 1
    while length + 1 < len(path) and _run(paths, position, path[: length + 1]) == sharing:
        length += 1
    return path[:length]


def _run(paths: Sequence[_Path], position: int, prefix: _Path) -> int:
    """Returns the number of successive paths from a position on that begin with a prefix."""
    run = 0
    while position + run < len(paths) and _begins(prefix, paths[position + run]):
        run += 1
    return run
