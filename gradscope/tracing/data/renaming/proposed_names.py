"""Proposed names are those of a checkpoint for the variables of a model that it lacks, as far as anything says so.

A tensor that is left over is proposed for a variable that is missing where both have the same sizes, in any order and
but for axes of size one, and more says so than of any other tensor: the modules around them are those of another pair,
they have the same axes, their modules have the sizes of the same tensors, they have the same numbers where both sides
number theirs alike, and words of their names in common. Where as much says that it is a parameter as that it is state
beside that, it is the parameter. Where that is so of none, the order decides: of names that
differ by numbers alone, on both sides as many, such as of batch norms that one side counts with the convolutions; and
of a module's variables that have numbers for names, as in the state of Equinox.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from gradscope.frameworks.modules.adapter import PARAMS, Described
from gradscope.tracing.data.renaming.name_likeness import (
    Likeness,
    Module,
    Sizes,
    module_of,
    numbers_of,
    parent_of,
    sizes_of,
    tensors_alike,
    words_of,
)
from gradscope.tracing.data.variable_names import components


def proposed_names(
    lacking: Mapping[str, Described], extra: Mapping[str, Described], known: Mapping[str, str]
) -> dict[str, str]:
    """Returns for variables the name of which more says that it is theirs than of any other of these sizes.

    Args:
        lacking: The variables, by path.
        extra: The tensors that are left over, by name.
        known: The names of the other variables, by path.
    """
    likeness = Likeness.of(lacking, extra)
    # A pair that is found says which module is which, and so decides between others; hence the rounds.
    pairs = dict(known)
    while True:
        taken = set(pairs.values())
        free = likeness.among(name for name in extra if name not in taken)
        partners: defaultdict[Module, set[Module]] = defaultdict(set)
        for path, name in pairs.items():
            partners[module_of(path)].add(parent_of(name))
        found = {
            path: best
            for path in lacking
            if path not in pairs and (best := free.best(path, partners.get(module_of(path), frozenset())))
        }
        counts = Counter(found.values())
        once = {path: name for path, name in found.items() if counts[name] == 1}
        once = once or _of_parameters(found) or _in_order(lacking, extra, pairs)
        if not once:
            return {path: pairs[path] for path in lacking if path in pairs}
        pairs |= once


def _of_parameters(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the pairs of parameters, of tensors that may as well be the state beside these.

    A file may have the parameters alone, as of a batch norm the scale and not the running statistics.
    """
    params = {path: name for path, name in found.items() if components(path)[0] == PARAMS}
    counts = Counter(params.values())
    return {path: name for path, name in params.items() if counts[name] == 1}


def _in_order(
    lacking: Mapping[str, Described], extra: Mapping[str, Described], pairs: Mapping[str, str]
) -> dict[str, str]:
    """Returns pairs of what is left, by their order, where the names that differ by numbers alone are as many."""
    taken = set(pairs.values())
    left = {path: each for path, each in lacking.items() if path not in pairs}
    free = {name: each for name, each in extra.items() if name not in taken}
    partners = {module_of(path): parent_of(name) for path, name in pairs.items()}
    by_place: defaultdict[tuple[Module, Sizes], list[str]] = defaultdict(list)
    for name, each in free.items():
        by_place[parent_of(name), sizes_of(each)].append(name)
    in_modules: dict[str, str] = {}
    for paths in tensors_alike(left).values():
        for module, inside in _by_module(paths, partners).items():
            names = by_place[partners[module], sizes_of(left[inside[0]])]
            in_modules |= zip(inside, names, strict=True) if len(names) == len(inside) else ()
    return in_modules or _numbered_alike(tensors_alike(left), tensors_alike(free))


def _by_module(paths: Sequence[str], partners: Collection[Module]) -> dict[Module, list[str]]:
    """Returns the numbered variables of each module of a pair, with those of what is below it."""
    found: defaultdict[Module, list[str]] = defaultdict(list)
    for path in paths:
        parts = module_of(path)
        around = next((parts[:end] for end in range(len(parts), 0, -1) if parts[:end] in partners), None)
        if around is not None and components(path)[-1].isdecimal():
            found[around].append(path)
    return found


def _numbered_alike(
    ours: Mapping[tuple[str, Sizes], Sequence[str]], theirs: Mapping[tuple[str, Sizes], Sequence[str]]
) -> dict[str, str]:
    """Returns pairs of variables and names that only their numbers tell apart, in the order of these."""
    as_many: defaultdict[tuple[Sizes, int], dict[str, Sequence[str]]] = defaultdict(dict)
    for (template, sizes), names in theirs.items():
        as_many[sizes, len(names)][template] = names
    found: dict[str, str] = {}
    for (template, sizes), paths in ours.items():
        fitting = as_many[sizes, len(paths)] if len(paths) > 1 else {}
        words = {each: len(words_of(each) & words_of(template)) for each in fitting}
        most = max(words.values(), default=0)
        best = [each for each, count in words.items() if count == most > 0]
        if len(best) == 1 and not found.keys() & {*paths}:
            names = fitting[best[0]]
            found |= zip(sorted(paths, key=_counted), sorted(names, key=_counted), strict=True)
    counts = Counter(found.values())
    return {path: name for path, name in found.items() if counts[name] == 1}


def _counted(name: str) -> list[tuple[int, str]]:
    # Numbers of any length: Python reads none of more than 4,300 digits.
    return [(len(digits), digits) for digits in (number.lstrip("0") for number in numbers_of(name))]
