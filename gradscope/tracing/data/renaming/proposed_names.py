"""Proposed names are those of a checkpoint for the variables of a model that it lacks, as far as anything says so.

A tensor that is left over is proposed for a variable that is missing where both have the same sizes, in any order, and
more says so than of any other tensor: the modules around them are those of another pair, their modules have the sizes
of the same tensors, they have the same numbers where both sides number theirs alike, and words of their names in
common.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        for name in extra.keys() - taken:
            free[_sizes(extra[name])].append(name)
        modules = {(_module(path), _parent(name)) for path, name in pairs.items()}
        found = {
            path: best
            for path, needed in lacking.items()
            if path not in pairs and (best := likeness.best(path, free[_sizes(needed)], modules))
        }
        counts = Counter(found.values())
        once = {path: name for path, name in found.items() if counts[name] == 1}
        if not once:
            return {path: pairs[path] for path in lacking if path in pairs}
        pairs |= once


@dataclass(frozen=True, slots=True)
class _Likeness:
    """A `_Likeness` measures how much says that a tensor is a variable.

    Attributes:
        needed: The sizes of the variables of each module.
        held: The sizes of the tensors of each module of the file.
        our_numbers: The numbers in the variables' paths, by what the paths are without numbers.
        their_numbers: Those of the file's names, likewise.
    """

    needed: Mapping[tuple[str, ...], Counter[_Sizes]]
    held: Mapping[tuple[str, ...], Counter[_Sizes]]
    our_numbers: Mapping[str, set[_Numbers]]
    their_numbers: Mapping[str, set[_Numbers]]

    @classmethod
    def of(cls, lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> _Likeness:
        """Returns the likeness of a file's tensors to variables."""
        return cls(
            _sizes_by({path: _module(path) for path in lacking}, lacking),
            _sizes_by({name: _parent(name) for name in extra}, extra),
            _numbers_bytemplate_of(lacking),
            _numbers_bytemplate_of(extra),
        )

    def best(self, path: str, names: Sequence[str], modules: Collection[tuple[object, object]]) -> str | None:
        """Returns the name of which more says so than of any other; None where that is none."""

        def score(name: str) -> tuple[bool, bool, bool, int]:
            return (
                (_module(path), _parent(name)) in modules,
                self.needed[_module(path)] <= self.held[_parent(name)],
                self._is_numbered_alike(path, name),
                len(_words(name) & _words(path)),
            )

        ranked = sorted(names, key=score, reverse=True)
        return ranked[0] if len(ranked) == 1 or (ranked and score(ranked[0]) > score(ranked[1])) else None

    def _is_numbered_alike(self, path: str, name: str) -> bool:
        # One side may count from 0 and the other from 1; then equal numbers are of different layers.
        ours, theirs = self.our_numbers[template_of(path)], self.their_numbers[template_of(name)]
        return numbers_of(path) == numbers_of(name) and ours <= theirs


def _sizes_by(modules: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Described]) -> dict[Any, Counter[_Sizes]]:
    sizes: defaultdict[tuple[str, ...], Counter[_Sizes]] = defaultdict(Counter)
    for name, module in modules.items():
        sizes[module][_sizes(tensors[name])] += 1
    return sizes


def _numbers_bytemplate_of(names: Iterable[str]) -> dict[str, set[_Numbers]]:
    numbers: defaultdict[str, set[_Numbers]] = defaultdict(set)
    for name in names:
        numbers[template_of(name)].add(numbers_of(name))
    return numbers


@lru_cache(_CACHED)
def template_of(name: str) -> str:
    """Returns a name with one sign for each number in it."""
    return NUMBER.sub("#", name)


@lru_cache(_CACHED)
def numbers_of(name: str) -> _Numbers:
    """Returns the numbers in a name."""
    return tuple(NUMBER.findall(name))


def _sizes(tensor: Described) -> _Sizes:
    return tuple(sorted(tensor.shape))


def _module(path: str) -> tuple[str, ...]:
    """Returns the module of a variable, which has variables in several collections."""
    return _parent(path)[1:]


@lru_cache(_CACHED)
def _parent(name: str) -> tuple[str, ...]:
    return components(name)[:-1]


@lru_cache(_CACHED)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", name.lower()))
