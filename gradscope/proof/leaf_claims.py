"""`leaf_outcomes` checks the gradient of a loss with respect to each parameter and input, along random directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.proof.claims import Claim, Outcome, outcome
from gradscope.proof.directions import DIRECTIONS, Directions, inner
from gradscope.proof.float64 import coarsest_epsilon_of, widened
from gradscope.proof.rules.faults.wrong_factors import confirmed_factor
from gradscope.proof.solvers.solver_tolerance import Tightening, tightened
from gradscope.proof.surrogate import Surrogate
from gradscope.proof.wide_programs import Widening, as_type
from gradscope.tracing.jaxpr.jaxcompat import trace

#: Up to this number, leaves are checked one by one; more are checked together and bisected where they disagree.
_ONE_BY_ONE: Final = 32
#: How many wrong leaves bisection isolates: a wrong rule near the loss can make every leaf wrong.
_MOST_WRONG: Final = 8


class LossOfLeaves:
    """LossOfLeaves makes claims about a loss as a function of some leaves of its arguments.

    Args:
        value: Returns the loss of flat arguments.
        surrogate: Likewise, with surrogates around a point, its first argument, for what differences see and gradients
            do not; None where there are none.
        leaves: The flat arguments.
        numbers: The indices of the leaves that are differentiated.
        epsilon: The relative precision of the loss.
        tightenings: The ways in which solvers of the loss can run to a smaller tolerance.
        hides_solvers: Whether it has solvers that cannot.
        compiled: What compiles a function.
    """

    def __init__(
        self,
        value: Callable[[Sequence[Any]], Any],
        surrogate: Surrogate | None,
        leaves: Sequence[Any],
        numbers: Sequence[int],
        *,
        epsilon: float,
        tightenings: Sequence[Tightening] = (),
        hides_solvers: bool = False,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = jax.jit,
    ) -> None:
        def every(chosen: Mapping[int, Any]) -> list[Any]:
            return [chosen.get(number, leaf) for number, leaf in enumerate(leaves)]

        def along(function: Surrogate) -> Callable[..., Any]:
            def moved(
                here: Mapping[int, Any], point: Mapping[int, Any], direction: Mapping[int, Any], step: Any
            ) -> Any:
                there = {n: leaf + (step * direction[n]).astype(leaf.dtype) for n, leaf in point.items()}
                return function(every(here), every(there))

            return compiled(moved)

        @cache
        def tighter(tightening: Tightening) -> LossOfLeaves:
            longer = partial(tightened, tightening=tightening)
            return LossOfLeaves(
                value, surrogate, leaves, numbers, epsilon=epsilon, compiled=longer, hides_solvers=hides_solvers
            )

        self.here = {number: leaves[number] for number in numbers}
        self._epsilon = epsilon
        self._hides_solvers = hides_solvers
        self._tighter: Mapping[Tightening, Callable[[], LossOfLeaves]] = {
            each: partial(tighter, each) for each in tightenings
        }
        value = jax.jit(value)  # so that the loss is traced once for its gradient and its differences
        self._gradient = compiled(jax.grad(lambda chosen: value(every(chosen))))
        self._along = along(lambda _, there: value(there))
        self._along_surrogate = self._surrogate_gradient = None
        if surrogate is not None:
            around = surrogate
            self._along_surrogate = along(around)
            self._surrogate_gradient = compiled(jax.grad(lambda chosen, here: around(every(here), every(chosen))))
        self._zeros = {number: jnp.zeros(leaves[number].shape, leaves[number].dtype) for number in numbers}
        self._known: list[tuple[Mapping[int, Any], Mapping[int, Any]]] = []

    def claim(self, point: Mapping[int, Any], direction: Mapping[int, np.ndarray]) -> Claim:
        """Returns the claim about the derivative at a point along a direction."""
        everywhere = self._everywhere(direction)
        return self._claim(
            lambda step: self._along(point, point, everywhere, step), self._gradient_at(point), direction
        )

    def tightened_claims(
        self, direction: Mapping[int, np.ndarray], *, surrogates: bool = False
    ) -> Mapping[Tightening, Callable[[], Claim]]:
        """Returns functions that return the claim at `here` along a direction with solvers that run longer.

        With surrogates they return that of `surrogate_claim`.
        """

        def there(of: Callable[[], LossOfLeaves]) -> Claim:
            loss = of()
            return (loss.surrogate_claim if surrogates else loss.claim)(loss.here, direction)

        return {each: partial(there, of) for each, of in self._tighter.items()}

    @property
    def epsilon(self) -> float:
        """The relative precision of the loss."""
        return self._epsilon

    @property
    def has_surrogate(self) -> bool:
        """Whether there are surrogates."""
        return self._along_surrogate is not None

    def surrogate_claim(self, point: Mapping[int, Any], direction: Mapping[int, np.ndarray]) -> Claim:
        """Returns the claim at a point with surrogates around `here`, or without where there are none.

        What is constant stays as it is at `here`: a value that a straight-through estimator rounds is on the kink of a
        rectifier wherever it is rounded to zero, at each point that has constants of its own.
        """
        along, gradient = self._along_surrogate, self._surrogate_gradient
        if along is None or gradient is None:
            return self.claim(point, direction)
        everywhere = self._everywhere(direction)
        slopes = self._gradient_at(point) if point is self.here else gradient(point, self.here)
        return self._claim(lambda step: along(self.here, point, everywhere, step), slopes, direction)

    def _claim(
        self, loss_at: Callable[[float], Any], gradient: Mapping[int, Any], direction: Mapping[int, np.ndarray]
    ) -> Claim:
        terms = [inner(gradient[number], each) for number, each in direction.items()]
        return Claim(
            loss_at=loss_at,
            derivative=sum(slope for slope, _ in terms),
            scale=math.hypot(*(size for _, size in terms)),
            epsilon=self._epsilon,
            hides_solvers=self._hides_solvers,
        )

    def _everywhere(self, direction: Mapping[int, np.ndarray]) -> Mapping[int, Any]:
        """Returns the direction of all leaves, zeros where it has none, where the loss is computed."""
        return {n: jnp.asarray(direction[n]) if n in direction else self._zeros[n] for n in self.here}

    def _gradient_at(self, point: Mapping[int, Any]) -> Mapping[int, Any]:
        for known, gradient in self._known:
            if known is point:
                return gradient
        gradient = self._gradient(point)
        self._known.append((point, gradient))
        return gradient


def loss_in_float64(
    value: Callable[[Sequence[Any]], Any],
    surrogate: Surrogate | None,
    leaves: Sequence[Any],
    numbers: Sequence[int],
    widening: Widening,
    *,
    tightenings: Sequence[Tightening],
    hides_solvers: bool,
) -> LossOfLeaves:
    """Returns what makes claims about a loss that computes in narrow types, in float64 in the place of those.

    Args:
        value: Returns the loss of flat arguments.
        surrogate: Likewise, with surrogates around a point; None where there are none.
        leaves: The flat arguments, of the types that the loss takes.
        numbers: The indices of the leaves that are differentiated.
        widening: What makes the loss compute in float64.
        tightenings: The ways in which solvers of the loss can run to a smaller tolerance.
        hides_solvers: Whether it has solvers that cannot.
    """

    def own(arguments: Sequence[Any]) -> list[Any]:
        return [
            as_type(each, leaves[number].dtype) if number in numbers else each for number, each in enumerate(arguments)
        ]

    wide = [widened(leaf) if number in numbers else leaf for number, leaf in enumerate(leaves)]
    loss = widening(lambda arguments: value(own(arguments)))
    return LossOfLeaves(
        loss,
        None if surrogate is None else widening(lambda here, there: surrogate(own(here), own(there))),
        wide,
        numbers,
        epsilon=coarsest_epsilon_of(trace(loss, wide)[0]),
        tightenings=tightenings,
        hides_solvers=hides_solvers,
    )


def leaf_outcomes(
    loss: LossOfLeaves, seed: int, *, tolerance: float = 0.0, excused: Collection[int] = ()
) -> Iterator[tuple[tuple[int, ...], Outcome]]:
    """Yields the indices of a group of leaves, and the outcome of the claim about them.

    Args:
        loss: The loss.
        seed: Seed of the random directions.
        tolerance: The relative error that a gradient may have in any case.
        excused: The indices of leaves whose gradients are made by a rule that is no derivative and has no surrogate.
    """
    leaves = _Leaves(loss, seed, tolerance)
    judged = [[number for number in loss.here if (number in excused) is apart] for apart in (False, True)]
    groups = [group for numbers in judged for group in _first_groups(numbers)]
    wrong = 0
    while groups:
        group = groups.pop(0)
        found = leaves.worst(group)
        if found.status == "wrong" and group[0] in excused:
            yield group, replace(found, status="excused")
        elif len(group) > 1 and found.status == "wrong" and wrong < _MOST_WRONG:
            half = len(group) // 2
            groups[:0] = [group[:half], group[half:]]
        else:
            wrong += found.status == "wrong"
            yield group, found


def _first_groups(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    return [(number,) for number in numbers] if len(numbers) <= _ONE_BY_ONE else [tuple(numbers)]


class _Leaves:
    """_Leaves checks groups of leaves along the same random directions at the same two points.

    Args:
        loss: The loss.
        seed: Seed of the random directions.
        tolerance: The relative error that a gradient may have in any case.
    """

    def __init__(self, loss: LossOfLeaves, seed: int, tolerance: float) -> None:
        self._loss = loss
        self._tolerance = tolerance
        self._directions = Directions(seed)
        nearby = self._directions.nearby(list(loss.here.values()))
        self._nearby = dict(zip(loss.here, nearby, strict=True))

    def worst(self, group: tuple[int, ...]) -> Outcome:
        """Returns the worst outcome of some leaves, with the factor of all if they have one."""
        found = [self._along_one(group) for _ in range(DIRECTIONS)]
        factor = confirmed_factor(found, partial(self._along_one, group))
        return replace(max(found, key=lambda each: each.rank), factor=factor)

    def _along_one(self, group: tuple[int, ...]) -> Outcome:
        loss = self._loss
        along = self._directions.along([loss.here[number] for number in group])
        direction = dict(zip(group, along, strict=True))
        claim = partial(loss.claim, direction=direction)
        held = partial(outcome, nearby=lambda: claim(self._nearby), tolerance=self._tolerance)
        if not loss.has_surrogate:
            return held(claim(loss.here), tightened=loss.tightened_claims(direction))
        # Solvers run longer for surrogates first: beside these, differences of the loss itself are mostly others.
        found = held(claim(loss.here))
        if found.status == "correct":
            return found
        here, nearby = (partial(loss.surrogate_claim, point, direction) for point in (loss.here, self._nearby))
        stopped = outcome(here(), nearby, loss.tightened_claims(direction, surrogates=True), self._tolerance)
        if stopped.status == "correct":
            return stopped
        found = held(claim(loss.here), tightened=loss.tightened_claims(direction))
        # What a library stops, of which its own rule returns the derivative all the same, is no constant.
        if found.status == "correct" or (found.solved and found.error < stopped.error):
            return found
        return stopped
