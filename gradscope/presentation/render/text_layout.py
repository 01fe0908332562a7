"""The text layout of a table is lines of text that fit a screen.

On a terminal names form an outline, the least important columns are dropped where the width is short (a note names
them), and texts that are still too long lose their middle. In a pipe every line has its full name and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from typing import Final

from rich.cells import cell_len
from rich.text import Span, Text

from gradscope.presentation.render.cells import RIGHT, column_texts
from gradscope.presentation.render.outline import INDENT, Item, outline
from gradscope.presentation.render.screen import (
    DIM,
    HEADING,
    TITLE,
    Screen,
    is_narrow,
    pad,
    padded,
    style_of_words,
    widest,
)
from gradscope.presentation.tables.table import Cell, Column, Table

_GAP: Final = "  "
#: Names get at least this many columns, and at most this share of a terminal before columns are dropped.
_NARROWEST_NAME: Final = 12
_SHARE_FOR_NAMES: Final = 0.4
#: Words get at most this share of a terminal; the full text is below the tables.
_SHARE_FOR_WORDS: Final = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A `_Block` is one column as texts, with their styles if they have any, and their width on the screen.

    `narrow` is what `is_narrow` says of the texts.
    """

    column: Column
    texts: list[str]
    styles: list[str] | None
    narrow: bool
    width: int


def lay_out(table: Table, screen: Screen) -> Text:
    """Returns a table as text, ready to print.

    Args:
        table: The table.
        screen: Where the text is shown.

    Returns:
        Lines, each with its line feed: title, headings, the table's lines, notes.
    """
    (name, *filled), (names_of_lines, *cells_by_column) = table.filled_columns()
    blocks = [_block(column, cells, screen) for column, cells in zip(filled, cells_by_column, strict=True)]
    items = _items(table, names_of_lines, screen)
    labels = screen.show_all([INDENT * item.depth + item.label for item in items])
    natural = widest([name.heading, *labels])
    fitting = _fitting(blocks, min(natural, _name_cap(screen)), screen)
    name_width = _name_width(natural, fitting, screen)

    text = Text()
    _append_headings(text, table, fitting, name_width, screen)
    text.append_text(_lines(table, fitting, items, labels, name_width=name_width, screen=screen))
    for note in (*table.notes, *_hidden_note(blocks, fitting)):
        text.append(screen.wrap(screen.show(note)) + "\n", DIM)
    return text


def hidden_columns(table: Table, screen: Screen) -> frozenset[str]:
    """Returns the headings of the columns for which a screen has no room.

    Args:
        table: The table.
        screen: Where it is shown.
    """
    (name, *filled), (names_of_lines, *cells_by_column) = table.filled_columns()
    blocks = [_block(column, cells, screen) for column, cells in zip(filled, cells_by_column, strict=True)]
    labels = screen.show_all([INDENT * item.depth + item.label for item in _items(table, names_of_lines, screen)])
    kept = _fitting(blocks, min(widest([name.heading, *labels]), _name_cap(screen)), screen)
    return frozenset(each.heading for each in filled) - {each.column.heading for each in kept}


def _block(column: Column, cells: Sequence[Cell], screen: Screen) -> _Block:
    texts = column_texts(column, cells, screen)
    styles = None
    if column.kind == "words":
        known = {text: style_of_words(text) for text in set(texts)}
        styles = [known[text] for text in texts]
    if column.kind == "words" and screen.width is not None:
        cap = max(round(screen.width * _SHARE_FOR_WORDS), _NARROWEST_NAME)
        texts = [screen.elide(text, cap) for text in texts]
    narrow = is_narrow(texts)
    width = max(widest([column.heading]), widest(texts, narrow=narrow))
    return _Block(column=column, texts=texts, styles=styles, narrow=narrow, width=width)


def _items(table: Table, cells: Sequence[Cell], screen: Screen) -> list[Item]:
    names = [str(name) for name in cells]
    if screen.width is None or not table.in_order:
        return [Item(0, name, position) for position, name in enumerate(names)]
    return outline(names)


def _name_cap(screen: Screen) -> int:
    """Returns the columns that names may take before other columns are dropped."""
    return 10**6 if screen.width is None else max(round(screen.width * _SHARE_FOR_NAMES), _NARROWEST_NAME)


def _fitting(blocks: Sequence[_Block], name_width: int, screen: Screen) -> list[_Block]:
    """Returns the columns that fit next to names of some width; the least important are dropped first."""
    natural = {block.column.heading: block.width for block in blocks if block.column.kind == "name"}
    cap = _name_cap(screen)
    kept = [replace(each, width=min(each.width, cap)) if each.column.kind == "name" else each for each in blocks]
    while screen.width is not None and name_width + _width(_widened(kept)) > screen.width:
        expendable = [block for block in kept if block.column.priority]
        if not expendable:
            break
        # Of equal priorities the last is dropped first: the columns of a group are in order of interest.
        dropped = max(reversed(expendable), key=lambda block: block.column.priority)
        kept = [each for each in kept if each is not dropped and not _is_pair(each.column, dropped.column)]
    kept = _widened(kept)
    for position, block in enumerate(kept):  # names beside the first take the room that is left
        if block.width < natural.get(block.column.heading, 0):
            room = block.width if screen.width is None else block.width + screen.width - name_width - _width(kept)
            width = min(natural[block.column.heading], max(room, _NARROWEST_NAME))
            texts = [screen.elide(text, width) for text in block.texts]
            kept[position] = replace(block, texts=texts, narrow=is_narrow(texts), width=width)
    return kept


def _is_pair(one: Column, other: Column) -> bool:
    return bool(one.pair) and one.pair == other.pair


def _widened(blocks: Sequence[_Block]) -> list[_Block]:
    """Returns the columns, the first of each group wide enough that the group's name fits above the group."""
    widened: list[_Block] = []
    for group, members in groupby(blocks, key=lambda block: block.column.group):
        first, *rest = members
        missing = len(group) - _width([first, *rest]) + len(_GAP)
        widened += [replace(first, width=first.width + max(missing, 0)), *rest]
    return widened


def _width(blocks: Sequence[_Block]) -> int:
    return sum(len(_GAP) + block.width for block in blocks)


def _name_width(natural: int, blocks: Sequence[_Block], screen: Screen) -> int:
    if screen.width is None:
        return natural
    return min(natural, max(screen.width - _width(blocks), _NARROWEST_NAME))


def _append_headings(text: Text, table: Table, blocks: Sequence[_Block], name_width: int, screen: Screen) -> None:
    text.append(f"{screen.show(table.title)}\n", TITLE)
    groups = _groups(blocks, screen)
    if groups.strip():
        text.append(f"{' ' * name_width}{groups}".rstrip() + "\n", DIM)
    headings = (pad(each.column.heading, each.width, right=each.column.kind in RIGHT) for each in blocks)
    text.append(_GAP.join([pad(table.columns[0].heading, name_width), *headings]).rstrip() + "\n", HEADING)


def _groups(blocks: Sequence[_Block], screen: Screen) -> str:
    """Returns the line above the headings: each group's name over all of its columns."""
    line = ""
    for group, members in groupby(blocks, key=lambda block: block.column.group):
        width = _width(list(members)) - len(_GAP)
        rule = screen.rule if group and len(group) + 1 < width else " "
        line += _GAP + (f"{group} " if group else "").ljust(width, rule)[:width]
    return line


def _lines(
    table: Table, blocks: Sequence[_Block], items: Sequence[Item], labels: list[str], *, name_width: int, screen: Screen
) -> Text:
    """Returns the lines of a table; a name that may not be cut and is too long has a line of its own."""
    narrow = is_narrow(labels)
    if widest(labels, narrow=narrow) <= name_width:
        long, names = [False] * len(labels), labels
    else:
        long = [not table.cuts_names and cell_len(label) > name_width for label in labels]
        names = [screen.elide("" if apart else label, name_width) for label, apart in zip(labels, long, strict=True)]
        narrow = is_narrow(names)
    columns = [padded(each.texts, each.width, narrow=each.narrow, right=each.column.kind in RIGHT) for each in blocks]
    names = padded(names, name_width, narrow=narrow)
    if len(names) == len(table.lines) and not any(long) and all(block.styles is None for block in blocks):
        joined = map(_GAP.join, zip(names, *columns, strict=True))
        return Text("".join([f"{line.rstrip()}\n" for line in joined]))
    cells = iter(zip(*columns, strict=True) if columns else repeat(()))  # items are in the order of lines
    # One text with its spans, because appending each cell took half of the time of `show` (2026-11).
    lines: list[str] = []
    spans: list[Span] = []
    end, styled = 0, any(block.styles is not None for block in blocks)
    for item, label, apart, name in zip(items, labels, long, names, strict=True):
        own = () if item.position is None else next(cells)
        line = f"{label}\n" * apart + _GAP.join((name, *own)).rstrip() + "\n"
        if styled or item.position is None:
            spans += _spans(blocks, item, end + (len(label) + 1) * apart, end + len(line), name)
        lines.append(line)
        end += len(line)
    return Text("".join(lines), spans=spans)


def _spans(blocks: Sequence[_Block], item: Item, start: int, end: int, name: str) -> Iterator[Span]:
    """Yields the styles of one line, from the offset of its name to that behind its line feed."""
    if item.position is None:
        yield Span(start, end, DIM)
        return
    offset = start + len(name)
    for block in blocks:
        text = block.texts[item.position]
        behind = offset + len(_GAP) + len(text) + max(block.width - cell_len(text), 0)
        if block.styles is not None and offset < end - 1:  # otherwise it is one of the blank cells at the end
            yield Span(offset, behind if behind < end - 1 else end, block.styles[item.position])
        offset = behind


def _hidden_note(blocks: Sequence[_Block], kept: Sequence[_Block]) -> list[str]:
    shown = {block.column.full_heading for block in kept}
    hidden = [name for block in blocks if (name := block.column.full_heading) and name not in shown]
    return [f"hidden at this width: {', '.join(hidden)} (--format json has all numbers)"] if hidden else []
