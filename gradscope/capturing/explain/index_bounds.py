"""An array of integers in a batch has a bound: the rows of the table, or the classes, that it looks up as it is.

A step that is compiled shows its batch to no one, but what a run records of it shows whether it keeps to the bounds. So
these are found with numbers in place of the batch that no table has rows for: where a look-up asks for just such a
number, nothing is computed of the array on the way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.explain.one_hot_labels import compared_labels
from gradscope.capturing.explain.row_lookups import all_out_of_bounds
from gradscope.history.history_rows import IndexBound
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.tracer import Trace

#: Indices are 32 bits wide in JAX; wider ones become so.
_LARGEST: Final = int(np.iinfo(np.int32).max)


def index_bounds(trace: Trace) -> tuple[IndexBound, ...]:
    """Returns the bounds of the integers of a batch, one for each array and what it looks up, in program order.

    Args:
        trace: The loss.
    """
    beyond = {leaf.name: _beyond(leaf) for leaf in trace.arguments if _are_indices(leaf)}
    leaves: list[Any] = [
        np.broadcast_to(np.asarray(beyond[leaf.name], leaf.dtype), leaf.shape) if _are_indices(leaf) else None
        for leaf in trace.arguments
    ]
    with np.errstate(over="ignore"):  # what is not chosen of them: counted from the end
        return tuple(dict.fromkeys(_bounds(trace, leaves, beyond)))


def _bounds(trace: Trace, leaves: list[Any], beyond: dict[str, int]) -> Iterator[IndexBound]:
    for each in all_out_of_bounds(trace, leaves):
        if each.index == beyond.get(each.input) and each.looked_up in ("rows", "values"):
            yield IndexBound(each.input, each.looked_up, each.rows, each.table, each.source)
    for labels in compared_labels(trace, leaves):
        if (labels.labels == beyond[labels.input]).all():
            yield IndexBound(labels.input, "classes", labels.classes, None, labels.source)


def _are_indices(leaf: Leaf) -> bool:
    return leaf.family == naming.INPUT and jnp.issubdtype(leaf.dtype, jnp.integer)


def _beyond(leaf: Leaf) -> int:
    return min(int(jnp.iinfo(leaf.dtype).max), _LARGEST)
