"""Outlines: a list of paths, written so that what neighbours share is written once.

    stage1_block1                 stage1_block1
    stage1_block1/conv1             conv1
    stage1_block1/bn1               bn1

A line stands indented under the nearest line above it whose path begins its own. Where no such line is there but
several neighbours begin alike, a *header* is put in, a line with a name and nothing else. So the full path can always
be read off: the label, and before it the labels of the lines it stands under.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

_Path: TypeAlias = tuple[str, ...]

#: How many neighbours must begin alike for a header: with two, the header costs what it saves.
_WORTH_A_HEADER: Final = 3
INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Item:
    """One line of an outline.

    Attributes:
        depth: How many lines it stands under.
        label: The part of the path that those do not say.
        position: Position of the path among those given; None for a header.
    """

    depth: int
    label: str
    position: int | None


def outline(names: Sequence[str]) -> list[Item]:
    """The outline of some paths.

    Args:
        names: Paths of components joined by `/`, in the order to be kept.

    Returns:
        One item per path, in order, headers between them.
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
    said = len(above[-1]) if above else 0
    return Item(len(above), "/".join(path[said:]), position)


def _begins(prefix: _Path, path: _Path) -> bool:
    """Whether `prefix` is a beginning of `path`, and not all of it."""
    return len(prefix) < len(path) and path[: len(prefix)] == prefix


def _header(paths: Sequence[_Path], position: int, above: Sequence[_Path]) -> _Path | None:
    """What enough paths from a position on begin with beyond the last line above; the longest for as many of them."""
    path, said = paths[position], len(above[-1]) if above else 0
    alike = _run(paths, position, path[: said + 1])
    if alike < _WORTH_A_HEADER or said + 1 >= len(path):
        return None
    length = said + 1
    while length + 1 < len(path) and _run(paths, position, path[: length + 1]) == alike:
        length += 1
    return path[:length]


def _run(paths: Sequence[_Path], position: int, prefix: _Path) -> int:
    """How many paths from a position on begin with a prefix, one after the other."""
    run = 0
    while position + run < len(paths) and _begins(prefix, paths[position + run]):
        run += 1
    return run
