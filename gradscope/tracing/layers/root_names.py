"""A root is the module that a loss calls, and its name is left out of the names of the layers inside it.

Frameworks open a scope for the root, `Net/fc1`, and their trees of parameters begin inside it, `fc1/kernel`. Without
the root's name a layer and its parameters have one name. The root itself keeps its name, and so do its methods and the
operations that are in none of its layers. Flax opens a scope for a method, too: `Net/Net.encode/fc1` is `fc1`.

An outermost scope counts as a root that a framework has opened, and whose layers read parameters of their own names: a
scope of the user's own is a name that was chosen. A root's name stays where the tree of parameters has that of an
outermost scope (`mlp/linear_0/w`, or `embed/table` beside `blocks`), and where names without it would be ambiguous:

- A layer inside has the name of another outermost layer.
- Calls of one layer read parameters of its name and others, as those of a student and a teacher of one class.
- Two roots have layers of one name. The methods of one module are no two roots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.jaxpr.scopes import Component, ScopePath, module_of
from gradscope.tracing.jaxpr.source_lines import is_in_module

_Key = TypeVar("_Key")


class _Call(NamedTuple):
    """A `_Call` is one call of a layer inside a root.

    Attributes:
        root: The root's name.
        inside: The path from the root.
        owns: Whether it reads a parameter whose name begins with that of the outermost layer inside the root.
        equation: Its first equation.
    """

    root: str
    inside: tuple[Component, ...]
    owns: bool
    equation: Equation

    @property
    def child(self) -> str:
        """The outermost layer inside the root."""
        return self.inside[0].name


def roots_left_out(layers: Iterable[tuple[ScopePath, Collection[str], Equation]]) -> frozenset[str]:
    """Returns the names of roots that the names of layers are to be without.

    Args:
        layers: The path of each call of a layer, the names of the parameters that it reads, also inside it, and its
            first equation.
    """
    outermost: set[str] = set()
    in_tree = False
    calls: list[_Call] = []
    for path, params, equation in layers:
        root = path.components[0].name
        heads = {name.partition("/")[0] for name in params}
        outermost.add(root)
        in_tree |= root in heads
        if inside := path.components[scopes_of_root(path) :]:
            calls.append(_Call(root, inside, inside[0].name in heads, equation))
    if in_tree:
        return frozenset()
    ambiguous = {call.root for call in calls if call.child in outermost}
    owning = {call.root: call for call in reversed(calls) if call.owns}  # one of each root is looked at
    found = {root for root, call in owning.items() if is_in_module(call.equation)} - ambiguous
    left_out = [call for call in calls if call.root in found]
    return frozenset(found - _of_other_parameters(left_out) - _of_other_modules(left_out))


def scopes_of_root(path: ScopePath) -> int:
    """Returns how many of the outermost scopes of a path are those of a root: its own one, and those of its methods."""
    root, *inside = (component.name for component in path.components)
    return 1 + sum(1 for _ in takewhile(lambda name: "." in name and module_of(name) == module_of(root), inside))


def _of_other_parameters(calls: Sequence[_Call]) -> set[str]:
    """Returns the roots with a layer of which some calls read parameters of its name, and other calls do not."""
    several = _grouped((call.inside, call) for call in calls)
    return {call.root for found in several.values() if len({each.owns for each in found}) > 1 for call in found}


def _of_other_modules(calls: Sequence[_Call]) -> set[str]:
    """Returns the roots with a layer whose name a layer in another root has, too."""
    several = _grouped((call.child, call) for call in calls)
    return {
        call.root for found in several.values() if len({module_of(each.root) for each in found}) > 1 for call in found
    }


def _grouped(calls: Iterable[tuple[_Key, _Call]]) -> Mapping[_Key, Sequence[_Call]]:
    groups: defaultdict[_Key, list[_Call]] = defaultdict(list)
    for key, call in calls:
        groups[key].append(call)
    return groups
