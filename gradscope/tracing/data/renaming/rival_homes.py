"""`rivals_hint` shows how to read one of several places in a checkpoint that may have a model's variables.

For each place, its lines leave out what only the others have, and nothing else: running statistics that are there once
stay where they are, beside whichever parameters are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from gradscope.naming import printable
from gradscope.tracing.data.renaming.renaming_hints import KEY_MAP
from gradscope.tracing.data.variable_names import Home, Matches, component_ends, is_path_of_keys


def place_of(home: Home) -> str:
    """Returns what a home is called in a message."""
    return printable("/".join(home.prefix)) or "the top of the file"


def rivals_hint(
    homes: Sequence[Home], names: Collection[str], find: Callable[[Collection[str]], Matches], *, ruled: bool
) -> str:
    """Returns for each home of a collection the lines that leave out all but that.

    Args:
        homes: The homes, none of which has the same tensors as another.
        names: The names of the file's tensors.
        find: Finds the variables among names.
        ruled: Whether the user's rules have renamed the tensors.
    """
    behind = "behind those that you have, " if ruled else ""
    blocks: list[str] = []
    for home in homes:
        lines = list(_lines(home, names, find))
        are = "lines are" if len(lines) > 1 else "line is"
        blocks += [f"To read {place_of(home)}, {behind}the {are}", *map(printable, lines)]
    return "\n".join([f"{KEY_MAP}. {blocks[0]}", *blocks[1:]])


def _lines(home: Home, names: Collection[str], find: Callable[[Collection[str]], Matches]) -> Iterator[str]:
    """Yields the lines of a key map that leave out what keeps a home from being read."""
    left, out = list(names), list[str]()
    meant = frozenset(home.names.values())
    found = find(left)
    while found.rivals:
        collection, rivals = next(iter(found.rivals.items()))
        known = [found.homes[collection], *rivals]
        chosen = next((each for each in known if frozenset(each.names.values()) == meant), known[0])
        others = {name for each in known for name in each.names.values()} - {*chosen.names.values()}
        out += [name for name in left if name in others]
        left = [name for name in left if name not in others]
        found = find(left)
    yield from _leaving_out(out, (name for name in found.names if name))


def _leaving_out(names: Collection[str], kept: Collection[str] | Iterator[str]) -> Iterator[str]:
    """Yields lines for names, one for all below a place that has none of those that are kept."""
    taken = {name[:end] for name in kept for end in component_ends(name)}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[next(name[:end] for end in component_ends(name) if name[:end] not in taken)].append(name)
    for place, members in groups.items():
        below = r"\W.*" if is_path_of_keys(members[0]) else "[/.].*"
        end = "$" if members == [place] else below
        yield f"  ^{re.escape(place)}{end} ->"
