"""The plain loss is the user's own, without any tap, as a function of its flat arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from gradscope.capturing.execution.preparation import Prepared


class PlainLoss:
    """A `PlainLoss` computes the user's loss from flat arguments and drops its auxiliary outputs.

    Args:
        loss: The loss.
        prepared: Its arguments.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], prepared: Prepared) -> None:
        self._loss = loss
        self._tree = jax.tree_util.tree_structure((prepared.variables, prepared.batch))

    def __call__(self, replaced: Mapping[int, Any], leaves: Sequence[Any]) -> Any:
        """Returns the loss at `leaves`, with some of them replaced.

        Args:
            replaced: Replacements, by the number of the leaf.
            leaves: The flat arguments.
        """
        flat = [replaced.get(number, leaf) for number, leaf in enumerate(leaves)]
        out = self._loss(*jax.tree_util.tree_unflatten(self._tree, flat))
        return out[0] if isinstance(out, tuple) else out
