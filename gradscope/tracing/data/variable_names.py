"""Matching finds the variables of a model among the tensors of a checkpoint, by name.

A checkpoint of a training run has more than the variables: a step, the moments of an optimizer, averages. And it may
have the variables inside something else, `state/params/head/kernel`. So each collection of variables is looked for as a
whole: its *home* is the prefix under which the file has the most of it. Homes with as many are told apart by whether
the parameters are there, then by how completely they are spelled, then by what their names say (the moments of an
optimizer are no parameters), then by their depth. Two homes that nothing tells apart are refused, and so is a home of
averages where another home has as many variables. What is not at home may also be at the top of the file, in any
spelling, where the user's rules have put it.

Names are compared by components, which slashes and dots separate: Flax writes `params/head/kernel`, PyTorch
`head.weight`. NNX stores the value of a variable as `value` below the variable's own name, and Haiku's names have
components that name no module.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from gradscope import naming
from gradscope.frameworks.modules.adapter import PARAMS
from gradscope.tracing.leaves import Leaf

#: A name by its components.
Components: TypeAlias = tuple[str, ...]

#: Components of the names of what optimizers store for each parameter, and of what may have the parameters, too.
_SLOTS: Final = frozenset(
    {"opt_state", "optimizer_state", "exp_avg", "exp_avg_sq", "momentum", "mu", "nu", "slot", "slots", "trace",
     "velocity"}
)  # fmt: skip
#: Those that nothing else is called.
_UNMISTAKABLE: Final = frozenset({"opt_state", "optimizer_state", "exp_avg", "exp_avg_sq"})
_OPTIMIZERS: Final = _SLOTS | {"opt", "optim", "optimizer"}
#: Words in components of the names of averages of the parameters: `ema`, `state_dict_ema`.
_AVERAGES: Final = frozenset({"average", "averaged", "averages", "avg", "ema", "polyak", "shadow", "swa"})
_VALUE: Final = "value"

#: A path as `jax.tree_util.keystr` writes it, `['params']['head'].kernel[0]`, or a tuple of names as text; its keys.
_PATH: Final = re.compile(r"(\['[^']*'\]|\[\d+\]|\.\w+)+|\('[^']*'(, '[^']*')*,?\)")
_KEY: Final = re.compile(r"'([^']*)'|(\w+)")

#: Components of Haiku's names that are no module's: of those built in a constructor, and of stacked layers.
_UNSCOPED: Final = re.compile(r"~|__layer_stack_(no|with)_per_layer(_\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A `Home` is a place in a file where variables of a collection are.

    Attributes:
        prefix: The components before the names of the variables.
        spelling: How the variables are spelled there: the number of the spelling, the fullest first.
        names: The file's names by the number of the variable.
    """

    prefix: Components
    spelling: int
    names: Mapping[int, str]

    def rank(self, neighbour: Components | None) -> tuple[int, bool, int, bool, int]:
        """Returns the sort key of a home, the best first; `neighbour` is the prefix of the parameters' home."""
        is_moments = not _OPTIMIZERS.isdisjoint(self.prefix)
        return -len(self.names), self.prefix != neighbour, self.spelling, is_moments, len(self.prefix)

    def may_be_meant_in_place_of(self, best: Home) -> bool:
        """Returns whether a home has most of the best one's variables, and by its name no averages, which that has."""
        others = self.has_averages or not _OPTIMIZERS.isdisjoint(self.prefix)
        return not others and best.has_averages and 2 * len(self.names) > len(best.names)

    @property
    def has_averages(self) -> bool:
        """Whether the home has averages, by its name."""
        return any(not _AVERAGES.isdisjoint(part.split("_")) for part in self.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """`Matches` state where a model's variables are in a file.

    Attributes:
        names: For each variable the file's name of it; None where the file has none.
        homes: The home of each collection; a collection without one is left out.
        rivals: By collection, the other homes that nothing tells apart from its home; each has other tensors.
    """

    names: tuple[str | None, ...]
    homes: Mapping[str, Home]
    rivals: Mapping[str, tuple[Home, ...]]


def components(name: str) -> Components:
    """Returns the components of a name, which may also be written as a path of keys in Python."""
    if is_path_of_keys(name):
        name = "/".join(key or other for key, other in _KEY.findall(name))
    return tuple(re.split(r"[/.]", name))


def last_name(name: str) -> str:
    """Returns the last component of a variable's name, which `value` below it is not."""
    *rest, last = components(name)
    return rest[-1] if rest and last == _VALUE else last


def is_path_of_keys(name: str) -> bool:
    """Returns whether a name is written as a path of keys in Python."""
    return _PATH.fullmatch(name) is not None


def component_ends(name: str) -> Iterator[int]:
    """Yields the number of characters of a name up to the end of each of its components."""
    inner = _KEY.finditer(name) if is_path_of_keys(name) else re.finditer(r"[^/.]+(?=[/.])", name)
    yield from (end for each in inner if (end := each.end()) < len(name))
    yield len(name)


def by_position(positions: Iterable[int], tensors: Container[str]) -> Matches:
    """Returns the variables of a file without names, whose tensors are in the order of the model's variables."""
    return Matches(names=tuple(str(n) if str(n) in tensors else None for n in positions), homes={}, rivals={})


def find_variables(paths: Sequence[str], leaves: Sequence[Leaf], saved: Collection[str]) -> Matches:
    """Returns where the variables of a model are among the names of a file.

    Args:
        paths: The path of each variable, its collection first.
        leaves: The variables.
        saved: The names of the tensors in the file.

    Returns:
        The matches.
    """
    collections: defaultdict[str, list[int]] = defaultdict(list)
    for number, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        collections[collection_of(path, leaf)].append(number)
    known = _by_components(saved)
    names: list[str | None] = [None] * len(paths)
    homes: dict[str, Home] = {}
    rivals: dict[str, tuple[Home, ...]] = {}
    neighbour: Components | None = None
    for collection in sorted(collections, key=lambda name: name not in ("", PARAMS)):
        spellings = {number: _spellings(paths[number], leaves[number]) for number in collections[collection]}
        rank = partial(Home.rank, neighbour=neighbour)
        found = sorted(_homes(spellings, known), key=rank)
        if not found:
            continue
        best = homes[collection] = found[0]
        neighbour = best.prefix if neighbour is None else neighbour
        others = [home for home in found if rank(home) == rank(best) or home.may_be_meant_in_place_of(best)]
        # One place may be a home in several spellings: `model` of `params/head`, and `model/params` of `head`.
        by_tensors = {frozenset(home.names.values()): home for home in reversed([best, *others])}
        rivals[collection] = tuple(home for home in reversed(by_tensors.values()) if home is not best)
        for home in (each for each in (best, *found) if each is best or not each.prefix):
            for number, name in home.names.items():
                names[number] = names[number] or name
    return Matches(names=tuple(names), homes=homes, rivals={name: each for name, each in rivals.items() if each})


def collection_of(path: str, leaf: Leaf) -> str:
    """Returns the collection of a variable; "" where the variables have no collections."""
    outermost = path.partition("/")[0]
    if leaf.family == naming.STATE or (outermost == PARAMS and leaf.name != path):
        return outermost
    return ""


def is_of_optimizer(name: str) -> bool:
    """Returns whether a name in a file says that the tensor is of an optimizer's state."""
    return not _OPTIMIZERS.isdisjoint(components(name))


def of_optimizers(names: Collection[str]) -> frozenset[str]:
    """Returns the names of what optimizers store for other tensors of these names.

    A word such as `mu` may also be the name of a layer: it is an optimizer's where what it stands beside is the name of
    another tensor, as `conv.weight` in `conv.weight.mu`, and so are all names with the same words then. One such as
    `exp_avg` always is.

    Args:
        names: The names in a file.
    """
    parts = {name: components(name) for name in names}
    words = {name: tuple(part for part in each if part in _OPTIMIZERS) for name, each in parts.items()}
    plain = {parts[name] for name, each in words.items() if not each}
    rests = {
        name: tuple(part for part in parts[name] if part not in _OPTIMIZERS) for name, each in words.items() if each
    }
    of_others = {words[name] for name, rest in rests.items() if any(rest[at:] in plain for at in range(len(rest) - 1))}
    return frozenset(name for name, each in words.items() if each in of_others or not _UNMISTAKABLE.isdisjoint(each))


def has_optimizer_alone(saved: Collection[str]) -> bool:
    """Returns whether a file has what an optimizer stores, and nothing else but numbers at its top."""
    names = [parts[:-1] if parts[-1] == _VALUE else parts for parts in map(components, saved)]
    slots = [parts for parts in names if not _SLOTS.isdisjoint(parts)]
    return bool(slots) and all(parts in slots or len(parts) == 1 for parts in names)


def _by_components(saved: Collection[str]) -> dict[Components, str]:
    # Of two spellings of a name, the one with slashes is the model's.
    known = {components(name): name for name in sorted(saved, key=lambda name: "/" in name)}
    plain = {tuple(part for part in parts if not _UNSCOPED.fullmatch(part)): name for parts, name in known.items()}
    return {parts[:-1]: name for parts, name in known.items() if parts[-1] == _VALUE} | plain | known


def _spellings(path: str, leaf: Leaf) -> tuple[Components, ...]:
    """Returns the names under which a variable may be stored, the fullest first."""
    collection = collection_of(path, leaf)
    alone = path.removeprefix(f"{collection}/")
    return tuple(components(name) for name in (path, naming.key_of(leaf.family, leaf.name), leaf.name, alone))


def _homes(spellings: Mapping[int, tuple[Components, ...]], known: Mapping[Components, str]) -> Iterator[Home]:
    """Yields every home of some variables; a spelling that equals a fuller one is not considered again."""
    variables: defaultdict[Components, dict[int, int]] = defaultdict(dict)  # by name, variables and their spelling
    for number, names in spellings.items():
        for at, name in reversed(list(enumerate(names))):
            variables[name][number] = at
    found: defaultdict[tuple[Components, int], dict[int, str]] = defaultdict(dict)
    for parts, name in known.items():
        for start in range(len(parts)):
            for number, at in variables.get(parts[start:], {}).items():
                found[parts[:start], at][number] = name
    for (prefix, at), names in found.items():
        if _SLOTS.isdisjoint(prefix):  # what an optimizer stores has the names of the parameters, and is none
            yield Home(prefix=prefix, spelling=at, names=names)
