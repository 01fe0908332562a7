"""Claims about a loss: its gradient with respect to each parameter and input, along random directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from gradscope.proof.claims import Line, Outcome, outcome
from gradscope.proof.directions import Directions, inner

#: So many leaves are claimed one by one; more together, and by halves where they disagree.
_ONE_BY_ONE: Final = 32
#: Directions per claim.
_DIRECTIONS: Final = 2


class Loss:
    """A loss as a function of some of its arguments' leaves.

    Args:
        loss: The loss.
        variables: Its variables.
        batch: Its batch.
        numbers: The leaves of both that are differentiated.
        epsilon: The relative precision that it is computed to.
    """

    def __init__(
        self, loss: Callable[[Any, Any], Any], variables: Any, batch: Any, numbers: Sequence[int], epsilon: float
    ) -> None:
        leaves, tree = jax.tree_util.tree_flatten((variables, batch))

        def value(chosen: Mapping[int, Any]) -> Any:
            out = loss(*jax.tree_util.tree_unflatten(tree, [chosen.get(n, leaf) for n, leaf in enumerate(leaves)]))
            return out[0] if isinstance(out, tuple) else out

        def along(chosen: Mapping[int, Any], direction: Mapping[int, Any], step: Any) -> Any:
            return value({n: leaf + (step * direction[n]).astype(leaf.dtype) for n, leaf in chosen.items()})

        self._epsilon = epsilon
        self.here = {number: leaves[number] for number in numbers}
        self._gradient = jax.jit(jax.grad(value))
        self._along = jax.jit(along)
        self._known: list[tuple[Mapping[int, Any], Mapping[int, Any]]] = []

    def line(self, at: Mapping[int, Any], direction: Mapping[int, np.ndarray]) -> Line:
        """The loss along a direction from a point."""
        gradient = self._gradient_at(at)
        everywhere = {n: direction.get(n, np.zeros(leaf.shape, leaf.dtype)) for n, leaf in at.items()}
        terms = [inner(gradient[number], each) for number, each in direction.items()]
        return Line(
            at=lambda step: float(self._along(at, everywhere, step)),
            claimed=sum(slope for slope, _ in terms),
            scale=math.hypot(*(size for _, size in terms)),
            epsilon=self._epsilon,
        )

    def _gradient_at(self, at: Mapping[int, Any]) -> Mapping[int, Any]:
        for known, gradient in self._known:
            if known is at:
                return gradient
        gradient = self._gradient(at)
        self._known.append((at, gradient))
        return gradient


def leaf_outcomes(loss: Loss, seed: int) -> Iterator[tuple[tuple[int, ...], Outcome]]:
    """What became of the claims about a loss's leaves: which leaves each was about, and its outcome."""
    numbers = tuple(loss.here)
    directions = Directions(seed)
    beside = dict(zip(numbers, directions.beside(list(loss.here.values())), strict=True))
    groups: list[tuple[int, ...]] = [(number,) for number in numbers] if len(numbers) <= _ONE_BY_ONE else [numbers]
    while groups:
        group = groups.pop(0)
        found = _worst(loss, group, directions, beside)
        if len(group) > 1 and found.status in ("wrong", "not checked"):
            half = len(group) // 2
            groups[:0] = [group[:half], group[half:]]
        else:
            yield group, found


def _worst(loss: Loss, group: tuple[int, ...], directions: Directions, beside: Mapping[int, Any]) -> Outcome:
    outcomes: list[Outcome] = []
    for _ in range(_DIRECTIONS):
        along = directions.along([loss.here[number] for number in group])
        direction = dict(zip(group, along, strict=True))
        line = loss.line(loss.here, direction)
        outcomes.append(outcome(line, lambda direction=direction: loss.line(beside, direction)))
    return max(outcomes, key=lambda each: each.rank)
