"""Renaming hints show how the names of a checkpoint could become those of a model, with lines to paste.

A tensor that is left over is proposed for a variable that is missing where both have the same sizes, in any order, and
their names have the most words in common, more than any other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gradscope.frameworks.modules.adapter import Described
from gradscope.naming import printable
from gradscope.tracing.data.axes import Axes, Stored
from gradscope.tracing.data.variable_names import components

#: The number of lines and of names that a hint shows.
_MOST: Final = 12

_KEY_MAP: Final = (
    "--map-keys FILE renames the checkpoint's tensors: each line of FILE is REGEX -> REPLACEMENT, the lines apply in "
    "order to every name, and a name that becomes empty is left out"
)


def key_map_hint(lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> str:
    """Returns what to write into a key map.

    Args:
        lacking: The variables that were not found, by path.
        extra: The file's tensors that are no variable, by name.
    """
    pairs = _proposed(lacking, extra)
    lines = [f"  ^{re.escape(name)}$ -> {path}" for path, name in pairs.items()]
    more = [f"  and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    proposal = "\n".join([". For this file, the lines may be", *map(printable, lines[:_MOST]), *more]) if lines else ""
    if len(pairs) == len(lacking):
        return f"{_KEY_MAP}{proposal}"
    theirs, ours = (
        _listed(name for name in extra if name not in pairs.values()),
        _listed(path for path in lacking if path not in pairs),
    )
    others = "other names" if lines else "names"
    return f"{_KEY_MAP}{proposal}\nThe file's {others} are {theirs or 'none'}; the model's are {ours}"


def axes_hint(stored: Sequence[Stored], orders: Mapping[str, frozenset[Axes]]) -> str:
    """Returns what to write into a map file.

    Args:
        stored: The variables whose axes may have several orders.
        orders: Their possible orders, by path.
    """
    first = stored[0]
    possible = orders[first.variable]
    identity = tuple(range(len(first.shape)))
    written = [f"[{{ transpose = {list(each)} }}]" for each in sorted(possible - {identity})]
    others = [*written[1:], *(["no steps, as it is"] if identity in possible else [])]
    return "\n".join(
        [
            "state it in a file for --map FILE, in one rule for each, or for several by a regular expression:",
            "  [[rule]]",
            f"  candidate = '{printable(re.escape(first.name))}'",
            f"  reference = '{printable(first.variable)}'",
            f"  steps = {written[0]}" + (f"  # or {' or '.join(others)}" if others else ""),
        ]
    )


def rivals_hint(prefixes: Sequence[str]) -> str:
    """Returns how to leave all but one of several places out."""
    lines = [f"  ^{re.escape(prefix)}[/.].* ->" for prefix in prefixes[1:]]
    return "\n".join([f"{_KEY_MAP}. To read {printable(prefixes[0])}, the lines are", *map(printable, lines)])


def _proposed(lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> dict[str, str]:
    """Returns for variables the name that is more alike than any other of these sizes."""
    # A pair that is found says which parent is which, and so decides between others; hence the rounds.
    pairs: dict[str, str] = {}
    while True:
        free = [name for name in extra if name not in pairs.values()]
        found = {
            path: best
            for path, needed in lacking.items()
            if path not in pairs
            and (best := _most_alike(path, [n for n in free if _sizes(extra[n]) == _sizes(needed)], pairs)) is not None
        }
        once = {path: name for path, name in found.items() if list(found.values()).count(name) == 1}
        if not once:
            return {path: pairs[path] for path in lacking if path in pairs}
        pairs |= once


def _most_alike(path: str, names: Sequence[str], pairs: Mapping[str, str]) -> str | None:
    parents = {(_parent(variable), _parent(name)) for variable, name in pairs.items()}

    def score(name: str) -> tuple[bool, int]:
        return (_parent(path), _parent(name)) in parents, len(_words(name) & _words(path))

    ranked = sorted(names, key=score, reverse=True)
    return ranked[0] if len(ranked) == 1 or (ranked and score(ranked[0]) > score(ranked[1])) else None


def _sizes(tensor: Described) -> list[int]:
    return sorted(tensor.shape)


def _parent(name: str) -> tuple[str, ...]:
    return components(name)[:-1]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z]+|\d+", name.lower()))


def _listed(names: Iterable[str]) -> str:
    known = list(map(printable, names))
    return ", ".join([*known[:_MOST], *([f"{len(known) - _MOST} more"] if len(known) > _MOST else [])])
