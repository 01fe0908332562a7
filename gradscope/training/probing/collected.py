"""An observed step returns what it collects as extra outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from gradscope.training.recording.expected_changes import ExpectedChange


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, kw_only=True)
class Collected:
    """A `Collected` is what a step returns in addition; the keys are part of the pytree.

    Attributes:
        keys: The keys of the observed tensors.
        vectors: Their core statistics, [tensors, WIDTH].
        numbers: The numbers of the step, by the names of `step_seen.NUMBERS`.
        gradients: The gradients of the loss by parameter.
        unchanged: Whether the step left a parameter as it was, by parameter; only of those whose new value is known.
        directions: The cosine of an update with the gradient, by parameter; only of those whose update is known.
        changes: What should be other values at the next step, by what is to be said where they are not.
        applied: How a parameter moves by its recorded update, by parameter; only where both are known.
    """

    keys: tuple[str, ...]
    vectors: Any
    numbers: dict[str, Any]
    gradients: dict[str, Any]
    unchanged: dict[str, Any]
    directions: dict[str, Any]
    changes: dict[str, ExpectedChange]
    applied: dict[str, Any]

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Returns the arrays, and the keys."""
        arrays = (self.vectors, self.numbers, self.gradients, self.unchanged, self.directions, self.changes,
                  self.applied)  # fmt: skip
        return arrays, self.keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[str, ...], children: tuple[Any, ...]) -> Collected:
        """Restores it from the output of `tree_flatten`."""
        vectors, numbers, gradients, unchanged, directions, changes, applied = children
        return cls(keys=keys, vectors=vectors, numbers=numbers, gradients=gradients, unchanged=unchanged,
                   directions=directions, changes=changes, applied=applied)  # fmt: skip
