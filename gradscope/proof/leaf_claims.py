"""Claims about a loss: its gradient with respect to each parameter and input, along random directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import numpy as np

from gradscope.proof.claims import Line, Outcome, outcome
from gradscope.proof.directions import Directions, inner

#: So many leaves are claimed one by one; more together, and by halves where they disagree.
_ONE_BY_ONE: Final = 32
#: So many of those that disagree are told apart from the others; a rule near the loss can make every one wrong.
_MOST_WRONG: Final = 8
#: Directions per claim.
_DIRECTIONS: Final = 2


class Loss:
    """A loss as a function of some of its arguments' leaves.

    Args:
        value: The loss of its flat arguments.
        stopped: The same with what `stop_gradient` made as it is at these arguments; None where nothing is stopped.
        leaves: Its flat arguments.
        numbers: Those that are differentiated.
        epsilon: The relative precision that it is computed to.
    """

    def __init__(
        self,
        value: Callable[[Sequence[Any]], Any],
        stopped: Callable[[Sequence[Any]], Any] | None,
        leaves: Sequence[Any],
        numbers: Sequence[int],
        epsilon: float,
    ) -> None:
        def of_chosen(function: Callable[[Sequence[Any]], Any], chosen: Mapping[int, Any]) -> Any:
            return function([chosen.get(number, leaf) for number, leaf in enumerate(leaves)])

        def along(function: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
            def moved(chosen: Mapping[int, Any], direction: Mapping[int, Any], step: Any) -> Any:
                there = {n: leaf + (step * direction[n]).astype(leaf.dtype) for n, leaf in chosen.items()}
                return of_chosen(function, there)

            return jax.jit(moved)

        self.here = {number: leaves[number] for number in numbers}
        self._epsilon = epsilon
        self._gradient = jax.jit(jax.grad(lambda chosen: of_chosen(value, chosen)))
        self._along = along(value)
        self._along_stopped = None if stopped is None else along(stopped)
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

    def stopped_line(self, direction: Mapping[int, np.ndarray]) -> Line | None:
        """The same from these arguments, stopped values staying as they are; None where nothing is stopped."""
        along = self._along_stopped
        if along is None:
            return None
        everywhere = {n: direction.get(n, np.zeros(leaf.shape, leaf.dtype)) for n, leaf in self.here.items()}
        return replace(self.line(self.here, direction), at=lambda step: float(along(self.here, everywhere, step)))

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
    wrong = 0
    while groups:
        group = groups.pop(0)
        found = _worst(loss, group, directions, beside)
        if len(group) > 1 and found.status == "wrong" and wrong < _MOST_WRONG:
            half = len(group) // 2
            groups[:0] = [group[:half], group[half:]]
        else:
            wrong += found.status == "wrong"
            yield group, found


def _worst(loss: Loss, group: tuple[int, ...], directions: Directions, beside: Mapping[int, Any]) -> Outcome:
    outcomes: list[Outcome] = []
    for _ in range(_DIRECTIONS):
        along = directions.along([loss.here[number] for number in group])
        direction = dict(zip(group, along, strict=True))
        line = loss.line(loss.here, direction)
        found = outcome(line, lambda direction=direction: loss.line(beside, direction))
        stopped = loss.stopped_line(direction) if found.status in ("wrong", "not checked") else None
        outcomes.append(found if stopped is None else outcome(stopped, lambda line=line: line))
    return max(outcomes, key=lambda each: each.rank)
