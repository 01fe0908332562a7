"""`Likeness` measures how much says that a tensor of a checkpoint is a variable of a model.

The measures are in an order, and each counts where those before it do not decide: the modules around both are those of
a pair that is found, the axes are the same, the tensor's module has the sizes of all of the variable's, both have the
same numbers where both sides number theirs alike, and words in common.

Tensors of which all but numbers and words says the same are a kind. A variable is compared with each kind, and in it
with what has its numbers or its words, and not with each tensor, of which there may be thousands.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from gradscope.frameworks.modules.adapter import Described
from gradscope.tracing.data.variable_names import components

#: The number of names whose parts are kept.
_CACHED: Final = 1 << 14

#: What libraries call the same parameter.
_OTHER_WORDS: Final = MappingProxyType(
    dict.fromkeys(("kernel", "scale", "gamma", "w"), "weight")
    | dict.fromkeys(("beta", "offset", "b"), "bias")
    | {"variance": "var"}
)

NUMBER: Final = re.compile(r"\d+")

#: The keys of the module around a tensor.
Module: TypeAlias = tuple[str, ...]
#: The sizes of a tensor's axes but for those of size one, sorted.
Sizes: TypeAlias = tuple[int, ...]
#: The numbers in a name.
_Numbers: TypeAlias = tuple[str, ...]


class _Score(NamedTuple):
    """_Score is what says that a tensor is a variable, most of it first.

    Attributes:
        paired: Whether the modules around both are those of a pair that is found.
        alike: Whether they have the same axes.
        has_all: Whether the tensor's module has the sizes of all of the variable's.
        numbered: Whether both have the same numbers, where both sides number theirs alike.
        words: The number of words in common.
    """

    paired: bool
    alike: bool
    has_all: bool
    numbered: bool
    words: int


@dataclass(frozen=True, slots=True)
class Likeness:
    """`Likeness` knows what says that a tensor is a variable.

    Attributes:
        needed: The sizes of the variables of each module.
        held: The sizes of the tensors of each module of the file.
        shapes: The sizes of all axes of each variable and tensor, those of size one too, sorted.
        sizes: The sizes of each variable and tensor.
        our_numbers: The numbers in the variables' paths, by what the paths are without numbers, and their sizes.
        their_numbers: Those of the file's names, likewise.
    """

    needed: Mapping[Module, Counter[Sizes]]
    held: Mapping[Module, Counter[Sizes]]
    shapes: Mapping[str, Sizes]
    sizes: Mapping[str, Sizes]
    our_numbers: Mapping[tuple[str, Sizes], frozenset[_Numbers]]
    their_numbers: Mapping[tuple[str, Sizes], frozenset[_Numbers]]

    @classmethod
    def of(cls, lacking: Mapping[str, Described], extra: Mapping[str, Described]) -> Likeness:
        """Returns the likeness of a file's tensors to variables."""
        every = (*lacking.items(), *extra.items())
        return cls(
            _sizes_by({path: module_of(path) for path in lacking}, lacking),
            _sizes_by({name: parent_of(name) for name in extra}, extra),
            {name: tuple(sorted(each.shape)) for name, each in every},
            {name: sizes_of(each) for name, each in every},
            _numbers_by_template(lacking),
            _numbers_by_template(extra),
        )

    def among(self, names: Iterable[str]) -> Candidates:
        """Returns tensors to choose from."""
        kinds: defaultdict[Sizes, defaultdict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
        held = {module: frozenset(counts.items()) for module, counts in self.held.items()}
        for name in names:
            sizes = self.sizes[name]
            numbers = self.their_numbers[template_of(name), sizes]
            kinds[sizes][self.shapes[name], held[parent_of(name)], numbers].append(name)
        return Candidates(
            self, {sizes: [_Kind(each) for each in of_sizes.values()] for sizes, of_sizes in kinds.items()}
        )


class Candidates:
    """`Candidates` chooses the tensors that are variables.

    Args:
        likeness: What says so.
        kinds: The tensors of each kind, by their sizes.
    """

    def __init__(self, likeness: Likeness, kinds: Mapping[Sizes, Sequence[_Kind]]) -> None:
        self._likeness = likeness
        self._kinds = kinds
        self._numbered: dict[tuple[str, Sizes, int], bool] = {}

    def best(self, path: str, modules: Collection[Module]) -> str | None:
        """Returns the name of which more says so than of any other; None where that is none.

        Args:
            path: The variable's path.
            modules: The modules that are that of the variable in pairs that are found.
        """
        most: _Score | None = None
        best: list[str] = []
        longer: list[_Score] = []
        for kind in self._kinds.get(self._likeness.sizes[path], ()):
            for score, names in self._scores(path, kind, modules):
                if most is None or score > most:
                    most, best = score, [*names]
                elif score == most:
                    best += names
                if not score.numbered and numbers_of(path) in kind.beginnings:
                    longer.append(score._replace(numbered=True))
        # Of `0.norm.bias` and `0.conv2.bias`, the second is as much of the layer 0, whose number says nothing then.
        return best[0] if len(best) == 1 and all(most is not None and each < most for each in longer) else None

    def _scores(self, path: str, kind: _Kind, modules: Collection[Module]) -> Iterator[tuple[_Score, Sequence[str]]]:
        """Yields scores with names that have them, of which two stand for more; the best of the kind are among them."""
        known = self._likeness
        alike = known.shapes[path] == known.shapes[kind.names[0]]
        has_all = known.needed[module_of(path)] <= known.held[parent_of(kind.names[0])]
        numbers, words = numbers_of(path), words_of(path)
        is_numbered = self._are_numbered_alike(path, kind.names[0])
        paired = [name for module in modules for name in kind.by_module.get(module, ())]
        for name in paired:
            same = is_numbered and numbers_of(name) == numbers
            yield _Score(True, alike, has_all, same, len(words_of(name) & words)), [name]
        if not paired:
            numbered = kind.numbered(numbers) if is_numbered else None
            shared, names = (numbered or kind.every).most_in_common(words)
            yield _Score(False, alike, has_all, numbered is not None, shared), names

    def _are_numbered_alike(self, path: str, name: str) -> bool:
        # One side may count from 0 and the other from 1; then equal numbers are of different layers.
        known, sizes = self._likeness, self._likeness.sizes[path]
        template, theirs = template_of(path), known.their_numbers[template_of(name), sizes]
        key = template, sizes, id(theirs)
        if key not in self._numbered:
            self._numbered[key] = known.our_numbers[template, sizes] <= theirs
        return self._numbered[key]


class _Kind:
    """`_Kind` has tensors of which all but their modules, numbers and words says the same."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.every = _Words(names)
        self.by_module: defaultdict[Module, list[str]] = defaultdict(list)
        self._by_numbers: defaultdict[_Numbers, list[str]] = defaultdict(list)
        self._numbered: dict[_Numbers, _Words] = {}
        #: What the numbers of the names begin with.
        self.beginnings = {numbers_of(name)[:end] for name in names for end in range(1, len(numbers_of(name)))}
        for name in names:
            self.by_module[parent_of(name)].append(name)
            self._by_numbers[numbers_of(name)].append(name)

    def numbered(self, numbers: _Numbers) -> _Words | None:
        """Returns the tensors that have some numbers; None where there are none."""
        if numbers not in self._by_numbers:
            return None
        if numbers not in self._numbered:
            self._numbered[numbers] = _Words(self._by_numbers[numbers])
        return self._numbered[numbers]


class _Words:
    """`_Words` finds the names that have most words in common with another."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # Of two names that have the same words none is the best, so that more are not kept.
        self._by_words: defaultdict[frozenset[str], list[str]] = defaultdict(list)
        self._having: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        for name in names:
            words = words_of(name)
            if words not in self._by_words:
                for word in words:
                    self._having[word].append(words)
            if len(self._by_words[words]) < 2:
                self._by_words[words].append(name)

    def most_in_common(self, words: Collection[str]) -> tuple[int, Sequence[str]]:
        """Returns the most words that a name has in common, and one name that has, or two for several."""
        counts = Counter[frozenset[str]]()
        for word in words:
            counts.update(self._having.get(word, ()))
        if not counts:
            return 0, self._names[:2]
        most = max(counts.values())
        found: list[str] = []
        for each, count in counts.items():
            if count == most:
                found += self._by_words[each]
                if len(found) > 1:
                    break
        return most, found


def tensors_alike(tensors: Mapping[str, Described]) -> dict[tuple[str, Sizes], list[str]]:
    """Returns the names that differ by numbers alone and have the same sizes."""
    found: defaultdict[tuple[str, Sizes], list[str]] = defaultdict(list)
    for name, each in tensors.items():
        found[template_of(name), sizes_of(each)].append(name)
    return found


@lru_cache(_CACHED)
def template_of(name: str) -> str:
    """Returns a name with one digit for each number in it, which no other name has then: `#` may be in names."""
    return NUMBER.sub("0", name)


@lru_cache(_CACHED)
def numbers_of(name: str) -> _Numbers:
    """Returns the numbers in a name."""
    return tuple(NUMBER.findall(name))


def sizes_of(tensor: Described) -> Sizes:
    """Returns the sizes of a tensor's axes but for those of size one, sorted."""
    return tuple(sorted(size for size in tensor.shape if size != 1))


def module_of(path: str) -> Module:
    """Returns the module of a variable, which has variables in several collections."""
    return parent_of(path)[1:]


@lru_cache(_CACHED)
def parent_of(name: str) -> Module:
    """Returns the module of a file's tensor."""
    return components(name)[:-1]


@lru_cache(_CACHED)
def words_of(name: str) -> frozenset[str]:
    """Returns the words of a name; a parameter's own word is one that all libraries have for it."""
    *modules, own = components(name.lower())
    words = re.findall(r"[a-z]+", own)
    return frozenset((*re.findall(r"[a-z]+", "/".join(modules)), *(_OTHER_WORDS.get(word, word) for word in words)))


def _sizes_by(modules: Mapping[str, Module], tensors: Mapping[str, Described]) -> dict[Module, Counter[Sizes]]:
    sizes: defaultdict[Module, Counter[Sizes]] = defaultdict(Counter)
    for name, module in modules.items():
        sizes[module][sizes_of(tensors[name])] += 1
    return sizes


def _numbers_by_template(tensors: Mapping[str, Described]) -> dict[tuple[str, Sizes], frozenset[_Numbers]]:
    return {alike: frozenset(map(numbers_of, names)) for alike, names in tensors_alike(tensors).items()}
