"""`OperationNames` knows which names of operations two programs may give to different steps.

An operation has no name but its primitive's and a number, in the scope around it: `attn/reshape#2` is the second
reshape of `attn`. Where two programs compute other operations in a scope, as where one of them was rewritten, the same
name is that of another step. Only in a scope whose operations are the same one by one, with the same shapes, do the
names say what belongs together; elsewhere values do first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gradscope.comparison.pairing.matching import Dumps, Match, names_of_operations
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, split_key

#: The name of an operation in its scope, its shape, and the class of its dtype.
_Step: TypeAlias = tuple[str, tuple[int, ...], str]


class OperationNames:
    """OperationNames finds the names of operations that are not certain to be those of one step.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = names_of_operations(dumps.ref), names_of_operations(dumps.cand)
        ref, cand = _by_scope(dumps.ref, self._ref), _by_scope(dumps.cand, self._cand)
        self._other = frozenset(scope for scope in {*ref, *cand} if ref.get(scope) != cand.get(scope))

    def mislead(self, name: str) -> bool:
        """Returns whether a name is that of an operation in a scope whose operations are not those of the other's."""
        return (name in self._ref or name in self._cand) and _scope(name) in self._other

    def name(self, match: Match) -> bool:
        """Returns whether a match is of values that two operations have names of, and is not stated by the user."""
        (_, one), others = split_key(match.ref), [split_key(key)[1] for key in match.recipe.keys]
        return match.matched_by != "map" and one in self._ref and all(other in self._cand for other in others)


def _by_scope(source: DumpSource, operations: frozenset[str]) -> Mapping[str, Sequence[_Step]]:
    """Returns the operations of each scope in the order of the dump, by its path."""
    found: defaultdict[str, list[_Step]] = defaultdict(list)
    for entry in source.manifest.entries:
        if entry.family == ACTIVATION and entry.name in operations:
            step = entry.name.rpartition("/")[2], entry.shape, dtype_class(entry.dtype)
            found[_scope(entry.name)].append(step)
    return found


def _scope(name: str) -> str:
    return name.rpartition("/")[0]
