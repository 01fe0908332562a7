"""`ComparedRule` compares a custom rule with finite differences of its function."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.proof.claims import Claim, Outcome, outcome, usual_outcome
from gradscope.proof.directions import DIRECTIONS, Directions, inner
from gradscope.proof.float64 import NarrowType, coarsest_epsilon, coarsest_epsilon_of, narrowest_type_of, widened
from gradscope.proof.rules.faults.returned_values import RulePrograms, WrongValue, wrong_value
from gradscope.proof.rules.faults.wrong_elements import RuleOfElements
from gradscope.proof.rules.faults.wrong_factors import RuleOfComplex
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.proof.solvers.hidden_solvers import hide_solvers
from gradscope.proof.solvers.solver_tolerance import Tightening, tightened, tightenings
from gradscope.proof.wide_programs import Widening, error_of_constants
from gradscope.protocols import implements
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.jaxcompat import trace
from gradscope.tracing.jaxpr.sharding import axes_of_type

#: A rule may compute the value of its function in another way, and differ by so many roundings.
_ROUNDINGS: Final = 16


class ComparedRule:
    """ComparedRule compares a custom rule with finite differences of its function, at the operands of one call.

    A variable that the call receives twice moves as one: a function may return its whole gradient for one of two
    operands that are always equal, as those do that receive what they close over once for each function inside. Only
    the outputs count that the loss sends a gradient to: a solver's rule need not differentiate its state. A variable
    that is constant in the program does not move where the rule returns zeros for it, as by None: nobody gets them.

    Args:
        call: A call of the function.
        operands: The operands.
        liveness: Which equations of the function count.
        directions: The source of random directions.
        widening: What makes the function compute in float64.
        tolerance: The relative error that the rule may have in any case.
    """

    def __init__(
        self,
        call: CustomRuleCall,
        operands: list[Any],
        *,
        liveness: Liveness,
        directions: Directions,
        widening: Widening,
        tolerance: float,
    ) -> None:
        self._equation = equation = call.equation
        frames = call.frames_inside()
        self._hides_solvers = hide_solvers(frames)
        self._outputs, self._positions = call.outputs, call.variables
        types = [float(jnp.finfo(equation.outvars[at].aval.dtype).eps) for at in call.outputs]
        self._epsilon = max(*types, coarsest_epsilon(frames, liveness))
        self._tolerance = tolerance
        self._directions = directions
        self._here = [operands[positions[0]] for positions in call.variables]
        run = partial(call.outputs_at, operands)
        if widening.counts_for(self._epsilon):
            self._tolerance = max(tolerance, error_of_constants(self._epsilon))
            run = widening.between_wide_types(run, self._here)
            self._here = list(map(widened, self._here))
            self._epsilon = coarsest_epsilon_of(trace(run, self._here)[0])
        self._moved = directions.nearby(self._here)
        self._usual = RulePrograms(run, jax.jit)
        self._tighter: Mapping[Tightening, RulePrograms] = {
            each: RulePrograms(run, partial(tightened, tightening=each)) for each in tightenings(frames)
        }
        self._counted = self._elements_that_count()
        self._fixed = self._without_gradient(call.constant)

    def outcome(self) -> Outcome:
        """Returns the worst outcome of the rule's derivative along random directions of all operands.

        Where the derivative is right, and the value is not the function's, the outcome is that of the value.
        """
        ways = (self._everywhere() for _ in range(DIRECTIONS))
        worst = max((self._along(along, along, along) for along in ways), key=lambda each: each.rank)
        value = None if worst.status == "wrong" else self.wrong_value()
        return worst if value is None else Outcome(status="wrong", error=value.error, expected=value.expected)

    def wrong_value(self) -> WrongValue | None:
        """Returns how the value that the rule returns is not that of the function; None where it is."""
        rounding = max(self._tolerance, _ROUNDINGS * self._epsilon)
        return wrong_value([self._usual, *self._tighter.values()], self._here, rounding)

    @implements(RuleOfElements)
    def of_one(
        self,
        variable: int,
        returned_for: int | None = None,
        *,
        moving: np.ndarray | None = None,
        arranged: Callable[[np.ndarray], np.ndarray] | None = None,
        quickly: bool = False,
    ) -> Outcome:
        everywhere = self._everywhere()
        if moving is not None:
            everywhere[variable] = np.where(moving, everywhere[variable], 0)
        zeros = list(map(np.zeros_like, everywhere))
        along, claimed = [*zeros], [*zeros]
        along[variable] = way = everywhere[variable]
        claimed[variable if returned_for is None else returned_for] = way if arranged is None else arranged(way)
        return self._along(along, claimed, everywhere, quickly=quickly)

    @implements(RuleOfElements)
    def operand(self, variable: int) -> np.ndarray:
        return np.asarray(self._here[variable])

    def ignores_what_arrives(self, variable: int) -> bool:
        """Returns whether the rule returns the same for one variable, and not zeros, whatever gradients arrive."""
        first, second = (np.asarray(self._gradients()[variable]) for _ in range(2))
        return bool(np.any(first)) and np.array_equal(first, second)

    @implements(RuleOfComplex)
    def turned(self, variable: int, turns: Sequence[complex], *, conjugated: bool, of_real: bool) -> list[Outcome]:
        everywhere, weights = self._everywhere(), self._weights()
        weights = [np.real(each).astype(each.dtype) for each in weights] if of_real else weights
        way = everywhere[variable]
        found: list[Outcome] = []
        for turn in turns:
            along, claimed = list(map(np.zeros_like, everywhere)), list(map(np.zeros_like, everywhere))
            along[variable] = (turn * (np.conj(way) if conjugated else way)).astype(way.dtype)
            claimed[variable] = way
            found.append(self._along(along, claimed, everywhere, weights))
        return found

    def returns(self, variable: int) -> bool:
        """Returns whether the function returns a distinct variable as it is."""
        here, equation = np.asarray(self._here[variable]), self._equation
        # All devices have the same operands here, of which a collective may make the same again.
        axes = axes_of_type(equation.invars[self._positions[variable][0]].aval)
        outputs = zip(self._outputs, self._usual.outputs(self._here), strict=True)
        return any(
            np.array_equal(here, made) for at, made in outputs if axes_of_type(equation.outvars[at].aval) == axes
        )

    def computes_in(self) -> NarrowType | None:
        """Returns the narrow type that the rule computes in; None where there is none."""
        outputs = self._usual.outputs(self._here)
        return narrowest_type_of(trace(self._usual.gradients, self._here, outputs)[0])

    def _everywhere(self) -> list[np.ndarray]:
        """Returns a random direction of all variables that move."""
        ways = self._directions.along(self._here)
        return [np.zeros_like(way) if at in self._fixed else way for at, way in enumerate(ways)]

    def _without_gradient(self, variables: Collection[int]) -> frozenset[int]:
        """Returns those of some variables for which the rule returns zeros."""
        if not variables:
            return frozenset()
        gradients = self._gradients()
        return frozenset(at for at in variables if not np.any(gradients[at]))

    def _gradients(self) -> Sequence[Any]:
        """Returns what the rule returns for random gradients that arrive."""
        return self._usual.gradients(self._here, [jnp.asarray(weight) for weight in self._weights()])

    def _weights(self) -> list[np.ndarray]:
        """Returns random gradients that arrive at the outputs, zeros at elements that do not count."""
        ways = self._directions.along([np.ones_like(each) for each in self._counted])
        return [np.where(counts, way, 0).astype(way.dtype) for way, counts in zip(ways, self._counted, strict=True)]

    def _elements_that_count(self) -> list[np.ndarray]:
        """Returns ones of the outputs' types, but zeros at elements that are infinite, which have no differences.

        So is what a loop has not written of the array in which it saves its steps, to which the loss sends nothing.
        All elements count where none is finite, or where the rule divides by what makes them infinite.
        """
        outputs = [np.asarray(each) for each in self._usual.outputs(self._here)]
        every = [np.ones_like(each) for each in outputs]
        finite = [np.where(np.isinf(each), 0, one).astype(one.dtype) for each, one in zip(outputs, every, strict=True)]
        if all(map(np.all, finite)) or not any(map(np.any, finite)):
            return every
        gradients = self._usual.gradients(self._here, list(map(jnp.asarray, finite)))
        return finite if all(np.all(np.isfinite(each)) for each in gradients) else every

    def _along(
        self,
        along: Sequence[np.ndarray],
        claimed: Sequence[np.ndarray],
        everywhere: Sequence[np.ndarray],
        weights: Sequence[np.ndarray] | None = None,
        *,
        quickly: bool = False,
    ) -> Outcome:
        """Returns the outcome along a direction.

        Args:
            along: The direction.
            claimed: What the rule's gradients are multiplied with: the direction, where it is what they are for.
            everywhere: A direction of all variables; errors are relative to the derivative in all of them at least.
            weights: The gradients that arrive at the outputs; random by default.
            quickly: Whether a wrong claim is held to nothing but few differences.
        """
        weights = self._weights() if weights is None else weights
        here, moved = self._here, self._moved
        claim = partial(self._claim, along=along, claimed=claimed, everywhere=everywhere, weights=weights)
        if quickly:
            return usual_outcome(claim(self._usual, here), self._tolerance)
        return outcome(
            claim(self._usual, here),
            lambda: claim(self._usual, moved),
            {each: partial(claim, programs, here) for each, programs in self._tighter.items()},
            self._tolerance,
        )

    def _claim(
        self,
        programs: RulePrograms,
        here: list[Any],
        *,
        along: Sequence[np.ndarray],
        claimed: Sequence[np.ndarray],
        everywhere: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
    ) -> Claim:
        def loss_at(step: float) -> float:
            moved = [each + (step * way).astype(way.dtype) for each, way in zip(here, along, strict=True)]
            made = programs.outputs(moved)
            pairs = zip(made, weights, self._counted, strict=True)
            return sum(inner(np.where(counts, each, 0), weight)[0] for each, weight, counts in pairs)

        gradients = programs.gradients(here, [jnp.asarray(weight) for weight in weights])
        pairs = list(zip(gradients, claimed, everywhere, strict=True))
        return Claim(
            loss_at=loss_at,
            derivative=sum(inner(gradient, way)[0] for gradient, way, _ in pairs),
            scale=math.hypot(*(inner(gradient, way)[1] for gradient, _, way in pairs)),
            epsilon=self._epsilon,
            hides_solvers=self._hides_solvers,
        )
