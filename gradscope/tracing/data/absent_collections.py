"""Absent collections are those beside the parameters of which a file has nothing, as of parameters saved alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gradscope import naming
from gradscope.frameworks.modules.adapter import RNGS, Described
from gradscope.naming import printable
from gradscope.tracing.data.variable_names import collection_of, components, is_of_optimizer
from gradscope.tracing.leaves import Leaf


def absent_collections(
    variables: Mapping[str, Leaf], found: Collection[str], left: Mapping[str, Described]
) -> dict[str, int]:
    """Returns how many variables each collection has that a file has nothing of.

    There are none where the file has anything left that could be they, or lacks a parameter.

    Args:
        variables: The model's variables, by path.
        found: The paths of those that the file has.
        left: The file's tensors that are no variable, by name.
    """
    within = {path: collection_of(path, leaf) for path, leaf in variables.items()}
    counts = Counter(within[path] for path, leaf in variables.items()
                     if leaf.family == naming.STATE and not is_random_key(leaf))  # fmt: skip
    lacks = any(path not in found for path, leaf in variables.items() if leaf.family != naming.STATE)
    if lacks or any(each.shape and not is_of_optimizer(name) for name, each in left.items()):
        return {}
    has = {within[path] for path in found}
    return {collection: count for collection, count in counts.items() if collection not in has}


def absence_notes(absent: Mapping[str, int], path: Path, left: Collection[str]) -> Iterator[str]:
    """Yields sentences about the collections that a file has nothing of.

    Args:
        absent: How many variables each has.
        path: The file.
        left: The names of its tensors that are no variable: those of another optimizer may be in such a collection.
    """
    for collection, count in absent.items():
        has_other = any(collection in components(name)[:-1] for name in left)
        has, whose = ("another", "the model's") if has_other else ("no", "its")
        tensors = f"{count:,} tensors are" if count > 1 else "one tensor is"
        yield f"{printable(path.name)} has {has} {collection}: {whose} {tensors} as init makes them"


def is_random_key(leaf: Leaf) -> bool:
    """Returns whether a variable is a module's random key, which few checkpoints contain."""
    return leaf.family == naming.STATE and leaf.name.startswith(f"{RNGS}/")
