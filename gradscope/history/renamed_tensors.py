"""The root's name is left out of the names of layers since 2026-11: what was `Net/fc1` of an older run is `fc1` now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gradscope import naming
from gradscope.history.history_rows import TensorRow
from gradscope.naming.paths import root_of, without_root


def without_roots(stating: Mapping[str, TensorRow], leaving_out: Mapping[str, TensorRow]) -> dict[str, str]:
    """Returns by its key the key of the same tensor without its root's name.

    It has the same shape and dtype, and only one side has the name with the root and only the other the name without
    it, where both have the root's own output, which keeps its name.

    Args:
        stating: Tensors by key, whose names may begin with a root.
        leaving_out: Those of the same model, whose names may be without it.
    """
    found: dict[str, str] = {}
    for key, row in stating.items():
        if "/" not in row.name or key in leaving_out:
            continue
        root = naming.key_of(row.family, root_of(row.name))
        other = naming.key_of(row.family, without_root(row.name))
        is_rooted = root in stating and root in leaving_out and other in leaving_out and other not in stating
        if is_rooted and _is_like(row, leaving_out[other]):
            found[key] = other
    shared = {other for other, count in Counter(found.values()).items() if count > 1}
    return {key: other for key, other in found.items() if other not in shared}


def by_shared_key(tensors: Mapping[int, TensorRow], others: Mapping[int, TensorRow]) -> dict[str, int]:
    """Returns the numbers of a run's tensors by their keys in another run, or by their own keys.

    Args:
        tensors: The tensors of the run, by number.
        others: Those of the other one.
    """
    renamed = without_roots({each.key: each for each in tensors.values()}, {each.key: each for each in others.values()})
    return {renamed.get(each.key, each.key): number for number, each in tensors.items()}


def _is_like(one: TensorRow, other: TensorRow) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)
