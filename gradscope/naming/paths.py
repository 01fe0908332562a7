"""A layer path is the position in the model at which a value is computed.

A path joins the scopes by `/`, the outermost first: `encoder/block[3]/attn`. It can have three marks:

- an *iteration* `[3]` on a component: the fourth iteration of the loop that runs there (for nested loops `[3][0]`);
- an *occurrence* `#2` at the end: the second call under the same path, in execution order;
- an *output* `.1` at the end: the second of several outputs of the layer.

A variable's path joins the keys of its pytree likewise. Where two variables would have one name, `{"a": {"b": x}}` and
`{"a/b": y}` in one tree, the slashes inside their keys are written as in a URL: `a/b` and `a%2Fb`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gradscope.naming.numbering import NUMBER, number_of

#: The name of a leaf that has no path, because it is the tree.
_ROOT: Final = "value"
#: How a slash inside a key is written where the name would otherwise be that of two leaves.
_SLASH: Final = "%2F"

#: How the name of the code before a layer begins: `before block/norm`.
BEFORE: Final = "before "

#: The name of what computes the loss behind the last layer.
LOSS: Final = "(loss)"

#: The iteration of all loops around a value: one index for each loop, the outermost first; empty outside of loops.
IterationIndex: TypeAlias = tuple[int, ...]

_LOOPS: Final = rf"((?:\[{NUMBER}\])*)"

#: The outermost component of a path: the scope, its iterations, and the number of a call or an output.
_OUTERMOST: Final = re.compile(rf"(.*?){_LOOPS}((?:#{NUMBER})?(?:\.{NUMBER})?)")

#: The numbers of a call and of an iteration.
_OCCURRENCE: Final = re.compile(rf"#{NUMBER}")
_ITERATION: Final = re.compile(rf"\[{NUMBER}\]")

#: What begins a part of a path: the scope of an inner layer, or an iteration.
_PART: Final = re.compile(r"[/\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPath:
    """LayerPath stores the path of a layer, or of one of its outputs.

    Attributes:
        components: The scope names with their iterations, the outermost first.
        occurrence: 1 for the first call under these scopes, 2 for the second, ...
        output: The index of the output; None where the layer has one output.
    """

    components: tuple[str, ...]
    occurrence: int = 1
    output: int | None = None

    def __str__(self) -> str:
        occurrence = f"#{self.occurrence}" if self.occurrence > 1 else ""
        output = f".{self.output}" if self.output is not None else ""
        return "/".join(self.components) + occurrence + output

    def with_output(self, output: int | None) -> LayerPath:
        """Returns the path of one of the layer's outputs."""
        return replace(self, output=output)


def unique_names(paths: Sequence[Sequence[str]]) -> list[str]:
    """Returns paths joined by `/`, so that no two are the same; those that are the only one of their name keep it.

    Args:
        paths: The keys on the way to each leaf of one tree.
    """
    plain = ["/".join(path) or _ROOT for path in paths]
    shared = {name for name, count in Counter(plain).items() if count > 1}
    pairs = zip(plain, paths, strict=True)
    names = [name if name not in shared else "/".join(key.replace("/", _SLASH) for key in path) for name, path in pairs]
    taken: set[str] = set()
    for at, name in enumerate(names):
        occurrence = 1
        while names[at] in taken or (occurrence > 1 and names[at] in names[at + 1 :]):
            occurrence += 1
            names[at] = f"{name}#{occurrence}"
        taken.add(names[at])
    return names


def plain_name(name: str) -> str:
    """Returns the name that a variable has in the user's program, which it may share: `a/b` for `a%2Fb`."""
    return name.replace(_SLASH, "/")


def layers_around(path: str) -> Iterator[str]:
    """Yields the paths of which a path is a part: below their scope, or an iteration of a loop in it."""
    yield from (path[: mark.start()] for mark in _PART.finditer(path))


def loops_around(path: str) -> Iterator[str]:
    """Yields those of which it is a part in an iteration of a loop."""
    yield from (layer for layer in layers_around(path) if path[len(layer)] == "[")


def iterations_around(path: str) -> Iterator[tuple[str, int]]:
    """Yields the loops of which a path is a part in an iteration, with the number of that."""
    for layer in loops_around(path):
        number = number_of(path[len(layer) + 1 :].partition("]")[0])
        if number is not None:
            yield layer, number


def without_occurrence(path: str) -> str:
    """Returns a path without the number of a call: `block[3]/attn` for `block[3]/attn#2`."""
    return _OCCURRENCE.sub("", path) if "#" in path else path


def without_iterations(path: str) -> str:
    """Returns a path without the numbers of iterations: `block/attn#2` for `block[3]/attn#2`."""
    return _ITERATION.sub("", path) if "[" in path else path


def is_inside(path: str, layers: Collection[str]) -> bool:
    """Returns whether a path is a part of one of some layers."""
    return any(layer in layers for layer in layers_around(path))


def root_of(path: str) -> str:
    """Returns the outermost scope of a path, without iterations and the number of a call."""
    return _parts(path.partition("/")[0])[0]


def without_root(name: str) -> str:
    """Returns a name without the scopes of its root, whose iterations are those of the next one: `attn[0]`."""
    root, _, inside = name.partition("/")
    module, loops = root_of(root).partition(".")[0], _parts(root)[1]
    while inside.startswith(f"{module}.") and "/" in inside:
        method, _, inside = inside.partition("/")
        loops += _parts(method)[1]
    first, slash, rest = inside.partition("/")
    scope, own, end = _parts(first)
    return scope + loops + own + end + slash + rest


def _parts(component: str) -> tuple[str, str, str]:
    found = _OUTERMOST.fullmatch(component)
    return (component, "", "") if found is None else (found[1], found[2], found[3])
