"""The plain loss: the user's own, without any tap, as a function of its flat arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from gradscope.capturing.execution.preparation import Prepared


class PlainLoss:
    """The user's loss of flat arguments, some of which take the place of others; what it returns beside is dropped.

    Args:
        loss: The loss.
        prepared: Its arguments.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], prepared: Prepared) -> None:
        self._loss = loss
        self._tree = jax.tree_util.tree_structure((prepared.variables, prepared.batch))

    def __call__(self, chosen: Mapping[int, Any], leaves: Sequence[Any]) -> Any:
        """The loss of `leaves`, those that are `chosen` instead aside, by number."""
        given = [chosen.get(number, leaf) for number, leaf in enumerate(leaves)]
        out = self._loss(*jax.tree_util.tree_unflatten(self._tree, given))
        return out[0] if isinstance(out, tuple) else out
