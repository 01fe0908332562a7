"""`rivals_hint` shows how to read one of several places in a checkpoint that may have a model's variables.

`copies_hint` does so where the names are another library's: what has tensors of the sizes of all parameters is a place.
For each place, its lines leave out what only the others have, and nothing else: running statistics that are there once
stay where they are, beside whichever parameters are read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from gradscope.frameworks.modules.adapter import PARAMS, Described
from gradscope.naming import printable
from gradscope.tracing.data.renaming.key_map import KEY_MAP
from gradscope.tracing.data.renaming.name_likeness import Sizes, sizes_of
from gradscope.tracing.data.variable_names import (
    Components,
    Home,
    Matches,
    component_ends,
    components,
    is_path_of_keys,
    of_optimizers,
)

#: The number of components below which no copies of a model are looked for.
_DEEPEST: Final = 8


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
    return _choices({place_of(home): list(_lines(home, names, find)) for home in homes}, ruled=ruled)


def copies_hint(lacking: Mapping[str, Described], extra: Mapping[str, Described], *, ruled: bool) -> str | None:
    """Returns the lines that leave out all but one of the places which each have tensors of the parameters' sizes.

    Args:
        lacking: The model's variables, by path, of which the file has none under its name.
        extra: The file's tensors, by name.
        ruled: Whether the user's rules have renamed the tensors.

    Returns:
        The lines for each place; None where there are no two.
    """
    learned = {path: each for path, each in lacking.items() if path.startswith(f"{PARAMS}/")} or lacking
    needed = Counter(map(sizes_of, learned.values()))
    moments = of_optimizers(extra)
    sizes = {name: sizes_of(each) for name, each in extra.items() if name not in moments}
    places = _places(sizes, needed, 0)
    inside = [{(rest, sizes[name]) for rest, name in _without_common_start(names)} for names in places.values()]
    # Copies have the same names: two parts of one model may each have tensors of all sizes of a small one.
    if len(places) < 2 or not needed <= Counter(size for _, size in set.intersection(*inside)):
        return None
    lines = {
        place: [*_leaving_out([name for other in places if other != place for name in places[other]], names)]
        for place, names in places.items()
    }
    return f"it may be of several models. {_choices(lines, ruled=ruled)}"


def _places(sizes: Mapping[str, Sizes], needed: Counter[Sizes], depth: int) -> dict[str, list[str]]:
    """Returns the deepest places that each have tensors of all sizes, by how the names in them begin."""
    inside: defaultdict[str, dict[str, Sizes]] = defaultdict(dict)
    for name, each in sizes.items():
        ends = list(component_ends(name))
        if depth < len(ends) - 1:
            inside[name[: ends[depth]]][name] = each
    whole = {place: each for place, each in inside.items() if needed <= Counter(each.values())}
    found: dict[str, list[str]] = {}
    for place, each in whole.items():
        deeper = _places(each, needed, depth + 1) if depth < _DEEPEST else {}
        found |= deeper if len(deeper) > 1 else {place: list(each)}
    return found


def _without_common_start(names: Sequence[str]) -> Iterator[tuple[Components, str]]:
    """Yields the components of names behind those with which all of them begin, with the names."""
    parts = [components(name) for name in names]
    modules = [each[:-1] for each in parts]
    # What the first and the last in their order begin with, all others begin with.
    pairs = zip(min(modules), max(modules), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    yield from zip((each[common:] for each in parts), names, strict=True)


def _choices(lines: Mapping[str, Sequence[str]], *, ruled: bool) -> str:
    """Returns what a key map is, and the lines of one for each place."""
    behind = "behind those that you have, " if ruled else ""
    blocks: list[str] = []
    for place, each in lines.items():
        are = "lines are" if len(each) > 1 else "line is"
        blocks += [f"To read {printable(place)}, {behind}the {are}", *map(printable, each)]
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
