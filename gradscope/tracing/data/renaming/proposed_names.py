"""Proposed names are those of a checkpoint for the variables of a model that it lacks, as far as anything says so.

A tensor that is left over is proposed for a variable that is missing where both have the same sizes, in any order and
but for axes of size one, and more says so than of any other tensor: the modules around them are those of another pair,
they have the same axes, their modules have the sizes of the same tensors, they have the same numbers where both sides
number theirs alike, and words of their names in common. Where that is so of none, the order decides: of names that
differ by numbers alone, on both sides as many, such as of batch norms that one side counts with the convolutions; and
of a module's variables that have numbers for names, as in the state of Equinox.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from gradscope.frameworks.modules.adapter import Described
from gradscope.tracing.data.variable_names import components

#: The number of names whose parts are kept.
_CACHED: Final = 1 << 14

NUMBER: Final = re.compile(r"\d+")

#: The numbers in a name, and the sizes of a tensor's axes, sorted.
_Numbers: TypeAlias = tuple[str, ...]
_Sizes: TypeAlias = tuple[int, ...]


def proposed_names(lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> dict[str, str]:
    """Returns for variables the name of which more says that it is theirs than of any other of these sizes."""
    likeness = _Likeness.of(lacking, extra)
    # A pair that is found says which module is which, and so decides between others; hence the rounds.
    pairs: dict[str, str] = {}
    while True:
        taken = set(pairs.values())
        free: defaultdict[_Sizes, list[str]] = defaultdict(list)
        for name in (each for each in extra if each not in taken):
            free[_sizes(extra[name])].append(name)
        modules = {(_module(path), _parent(name)) for path, name in pairs.items()}
        found = {
            path: best
            for path, needed in lacking.items()
            if path not in pairs and (best := likeness.best(path, free[_sizes(needed)], modules))
        }
        counts = Counter(found.values())
        once = {path: name for path, name in found.items() if counts[name] == 1}
        once = once or _in_order(lacking, extra, pairs)
        if not once:
            return {path: pairs[path] for path in lacking if path in pairs}
        pairs |= once


def _in_order(
    lacking: Mapping[str, Described], extra: Mapping[str, Described], pairs: Mapping[str, str]
) -> dict[str, str]:
    """Returns pairs of what is left, by their order, where the names that differ by numbers alone are as many."""
    taken = set(pairs.values())
    left = {path: each for path, each in lacking.items() if path not in pairs}
    free = {name: each for name, each in extra.items() if name not in taken}
    partners = {_module(path): _parent(name) for path, name in pairs.items()}
    in_modules: dict[str, str] = {}
    for paths in _alike(left).values():
        for module, inside in _by_module(paths, partners).items():
            sizes = _sizes(left[inside[0]])
            names = [name for name in free if _parent(name) == partners[module] and _sizes(free[name]) == sizes]
            in_modules |= zip(inside, names, strict=True) if len(names) == len(inside) else ()
    return in_modules or _numbered_alike(_alike(left), _alike(free))


def _by_module(paths: Sequence[str], partners: Collection[tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """Returns the numbered variables of each module of a pair, with those of what is below it."""
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in paths:
        parts = _module(path)
        around = next((parts[:end] for end in range(len(parts), 0, -1) if parts[:end] in partners), None)
        if around is not None and components(path)[-1].isdecimal():
            found[around].append(path)
    return found


def _numbered_alike(
    ours: Mapping[tuple[str, _Sizes], Sequence[str]], theirs: Mapping[tuple[str, _Sizes], Sequence[str]]
) -> dict[str, str]:
    """Returns pairs of variables and names that only their numbers tell apart, in the order of these."""
    found: dict[str, str] = {}
    for (template, sizes), paths in ours.items():
        fitting = {
            each: names for (each, other), names in theirs.items() if other == sizes and len(names) == len(paths)
        }
        words = {each: len(_words(each) & _words(template)) for each in fitting}
        best = [each for each in fitting if words[each] == max(words.values()) > 0]
        if len(best) == 1 and len(paths) > 1 and not found.keys() & {*paths}:
            names = fitting[best[0]]
            found |= zip(sorted(paths, key=_counted), sorted(names, key=_counted), strict=True)
    counts = Counter(found.values())
    return {path: name for path, name in found.items() if counts[name] == 1}


def _counted(name: str) -> list[tuple[int, str]]:
    # Numbers of any length: Python reads none of more than 4,300 digits.
    return [(len(digits), digits) for digits in (number.lstrip("0") for number in numbers_of(name))]


def _alike(tensors: Mapping[str, Described]) -> dict[tuple[str, _Sizes], list[str]]:
    """Returns the names that differ by numbers alone and have the same sizes."""
    found: defaultdict[tuple[str, _Sizes], list[str]] = defaultdict(list)
    for name, each in tensors.items():
        found[template_of(name), _sizes(each)].append(name)
    return found


@dataclass(frozen=True, slots=True)
class _Likeness:
    """A `_Likeness` measures how much says that a tensor is a variable.

    Attributes:
        needed: The sizes of the variables of each module.
        held: The sizes of the tensors of each module of the file.
        shapes: The sizes of all axes of each variable and tensor, those of size one too, sorted.
        sizes: The sizes of each variable.
        our_numbers: The numbers in the variables' paths, by what the paths are without numbers, and their sizes.
        their_numbers: Those of the file's names, likewise.
    """

    needed: Mapping[tuple[str, ...], Counter[_Sizes]]
    held: Mapping[tuple[str, ...], Counter[_Sizes]]
    shapes: Mapping[str, _Sizes]
    sizes: Mapping[str, _Sizes]
    our_numbers: Mapping[tuple[str, _Sizes], set[_Numbers]]
    their_numbers: Mapping[tuple[str, _Sizes], set[_Numbers]]

    @classmethod
    def of(cls, lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> _Likeness:
        """Returns the likeness of a file's tensors to variables."""
        return cls(
            _sizes_by({path: _module(path) for path in lacking}, lacking),
            _sizes_by({name: _parent(name) for name in extra}, extra),
            {name: tuple(sorted(each.shape)) for name, each in (*lacking.items(), *extra.items())},
            {path: _sizes(each) for path, each in lacking.items()},
            _numbers_by_template(lacking),
            _numbers_by_template(extra),
        )

    def best(self, path: str, names: Sequence[str], modules: Collection[tuple[object, object]]) -> str | None:
        """Returns the name of which more says so than of any other; None where that is none."""

        def score(name: str) -> tuple[bool, bool, bool, bool, int]:
            return (
                (_module(path), _parent(name)) in modules,
                self.shapes[path] == self.shapes[name],
                self.needed[_module(path)] <= self.held[_parent(name)],
                self._is_numbered_alike(path, name),
                len(_words(name) & _words(path)),
            )

        ranked = sorted(names, key=score, reverse=True)
        return ranked[0] if len(ranked) == 1 or (ranked and score(ranked[0]) > score(ranked[1])) else None

    def _is_numbered_alike(self, path: str, name: str) -> bool:
        # One side may count from 0 and the other from 1; then equal numbers are of different layers.
        sizes = self.sizes[path]
        ours, theirs = self.our_numbers[template_of(path), sizes], self.their_numbers[template_of(name), sizes]
        return numbers_of(path) == numbers_of(name) and ours <= theirs


def _sizes_by(modules: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Described]) -> dict[Any, Counter[_Sizes]]:
    sizes: defaultdict[tuple[str, ...], Counter[_Sizes]] = defaultdict(Counter)
    for name, module in modules.items():
        sizes[module][_sizes(tensors[name])] += 1
    return sizes


def _numbers_by_template(tensors: Mapping[str, Described]) -> dict[tuple[str, _Sizes], set[_Numbers]]:
    return {alike: {*map(numbers_of, names)} for alike, names in _alike(tensors).items()}


@lru_cache(_CACHED)
def template_of(name: str) -> str:
    """Returns a name with one digit for each number in it, which no other name has then: `#` may be in names."""
    return NUMBER.sub("0", name)


@lru_cache(_CACHED)
def numbers_of(name: str) -> _Numbers:
    """Returns the numbers in a name."""
    return tuple(NUMBER.findall(name))


def _sizes(tensor: Described) -> _Sizes:
    return tuple(sorted(size for size in tensor.shape if size != 1))


def _module(path: str) -> tuple[str, ...]:
    """Returns the module of a variable, which has variables in several collections."""
    return _parent(path)[1:]


@lru_cache(_CACHED)
def _parent(name: str) -> tuple[str, ...]:
    return components(name)[:-1]


@lru_cache(_CACHED)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", name.lower()))
