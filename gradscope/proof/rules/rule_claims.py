"""`rule_outcomes` checks the `custom_vjp` and `custom_jvp` functions of a model, each at operands of its calls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.zeros.neighbourhood import observe_values
from gradscope.proof.claims import Claim, Outcome, outcome
from gradscope.proof.directions import DIRECTIONS, Directions, inner
from gradscope.proof.float64 import NarrowType, coarsest_epsilon, coarsest_epsilon_of, narrowest_type_of, widened
from gradscope.proof.rules.arriving_gradients import outputs_with_gradient
from gradscope.proof.rules.distinct_rules import DistinctRule, distinct_rules
from gradscope.proof.rules.faults.returned_values import RulePrograms, WrongValue, wrong_value
from gradscope.proof.rules.faults.wrong_arguments import WrongArgument, wrong_arguments
from gradscope.proof.rules.faults.wrong_factors import RuleOfComplex
from gradscope.proof.rules.rule_calls import CustomRuleCall, custom_rule_calls
from gradscope.proof.rules.rule_operands import CallsToCheck, RuleOperands
from gradscope.proof.solvers.hidden_solvers import hide_solvers
from gradscope.proof.solvers.solver_tolerance import Tightening, tightened, tightenings
from gradscope.proof.wide_programs import Widening, error_of_constants
from gradscope.protocols import implements
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.jaxcompat import trace
from gradscope.tracing.jaxpr.sharding import axes_of_type
from gradscope.tracing.tracer import Trace

_NOT_CHECKED: Final = Outcome(status="not checked", error=math.nan, expected=math.nan)
#: A rule may compute the value of its function in another way, and differ by so many roundings.
_ROUNDINGS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """RuleOutcome stores how a rule compares with its function, at the operands where it does worst.

    Attributes:
        rule: The rule.
        outcome: The outcome of its claim.
        arguments: The arguments for which a wrong rule is wrong.
        value: How what it returns for the function's value is wrong; None where it is not.
    """

    rule: DistinctRule
    outcome: Outcome
    arguments: tuple[WrongArgument, ...] = ()
    value: WrongValue | None = None


def rule_outcomes(
    trace: Trace,
    arguments: Sequence[Any],
    seed: int,
    *,
    widening: Widening,
    tolerance: float = 0.0,
    kinks: bool = False,
) -> Iterator[RuleOutcome]:
    """Yields the outcome of each custom rule and each shape of operands, the worst of the calls that are checked.

    Args:
        trace: The traced loss.
        arguments: Its flat arguments.
        seed: Seed of the random directions.
        widening: What makes a function that computes in a narrow type compute in float64.
        tolerance: The relative error that a rule may have in any case.
        kinks: Whether a call at a kink of the function is looked for, and counts more than one where it is smooth: it
            explains a gradient that is not smooth.
    """
    with widening.context():
        rules = distinct_rules([call for call in custom_rule_calls(trace) if call.variables])
    for rule in (each for each in rules if each.needs_mesh):
        yield RuleOutcome(rule=rule, outcome=_NOT_CHECKED)
    rules = [rule for rule in rules if not rule.needs_mesh]
    if not rules:
        return
    calls_of = [CallsToCheck(rule, equal=kinks) for rule in rules]
    with widening.context():
        neighbourhood = observe_values(trace, arguments, (each for calls in calls_of for each in calls.variables()))
    directions = Directions(seed)
    rule_at = partial(
        _RuleOfCall, liveness=trace.liveness, directions=directions, tolerance=tolerance, widening=widening
    )
    for rule, calls in zip(rules, calls_of, strict=True):
        found: list[tuple[Outcome, RuleOperands, _RuleOfCall]] = []
        for operands in calls.operands(neighbourhood):
            compared = rule_at(operands.call, operands.values)
            result = compared.outcome()
            if result.status == "wrong" and len(operands.call.outputs) > 1:
                with widening.context():
                    outputs = outputs_with_gradient(trace, arguments, operands.call)
                call = replace(operands.call, outputs=outputs)
                compared = rule_at(call, operands.values)
                result = compared.outcome()
            found.append((result, operands, compared))
        if not found:
            yield RuleOutcome(rule=rule, outcome=_NOT_CHECKED)
            continue
        at_kinks = [each for each in found if kinks and each[0].status == "not smooth here"]
        worst, operands, compared = max(found, key=lambda each: each[0].rank)
        if worst.status == "correct" and at_kinks:
            worst, operands, compared = at_kinks[0]
        if worst.status == "wrong":
            there = replace(rule, call=operands.call, chosen=operands.chosen)
            arguments = wrong_arguments(trace, operands.call, compared)
            yield RuleOutcome(rule=there, outcome=worst, arguments=arguments, value=compared.wrong_value())
        else:
            at_kink = worst.status == "not smooth here" and kinks
            there = replace(rule, call=operands.call, chosen=operands.chosen) if at_kink else rule
            yield RuleOutcome(rule=there, outcome=worst)


class _RuleOfCall:
    """_RuleOfCall compares a custom rule with finite differences of its function, at the operands of one call.

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

    def of_one(self, variable: int, returned_for: int | None = None, *, sign: int = 0) -> Outcome:
        """Returns the outcome along a random direction of one variable, the others unmoved.

        Args:
            variable: The variable that moves, by its number.
            returned_for: The variable of the same shape for which the rule returns what is compared, if it is another.
            sign: The sign of the elements that move; 0 for all.
        """
        everywhere = self._everywhere()
        if sign:
            moving = np.sign(np.real(self._here[variable])) == sign
            if not moving.any():
                return Outcome(status="not checked", error=math.nan, expected=math.nan)
            everywhere[variable] = np.where(moving, everywhere[variable], 0)
        zeros = list(map(np.zeros_like, everywhere))
        along, claimed = [*zeros], [*zeros]
        along[variable] = claimed[variable if returned_for is None else returned_for] = everywhere[variable]
        return self._along(along, claimed, everywhere)

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
        gradients = self._usual.gradients(self._here, [jnp.asarray(weight) for weight in self._weights()])
        return frozenset(at for at in variables if not np.any(gradients[at]))

    def _weights(self) -> list[np.ndarray]:
        """Returns random gradients that arrive at the outputs."""
        return self._directions.along([np.ones_like(each) for each in self._usual.outputs(self._here)])

    def _along(
        self,
        along: Sequence[np.ndarray],
        claimed: Sequence[np.ndarray],
        everywhere: Sequence[np.ndarray],
        weights: Sequence[np.ndarray] | None = None,
    ) -> Outcome:
        """Returns the outcome along a direction.

        Args:
            along: The direction.
            claimed: What the rule's gradients are multiplied with: the direction, where it is what they are for.
            everywhere: A direction of all variables; errors are relative to the derivative in all of them at least.
            weights: The gradients that arrive at the outputs; random by default.
        """
        weights = self._weights() if weights is None else weights
        here, moved = self._here, self._moved
        claim = partial(self._claim, along=along, claimed=claimed, everywhere=everywhere, weights=weights)
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
            return sum(inner(each, weight)[0] for each, weight in zip(made, weights, strict=True))

        gradients = programs.gradients(here, [jnp.asarray(weight) for weight in weights])
        pairs = list(zip(gradients, claimed, everywhere, strict=True))
        return Claim(
            loss_at=loss_at,
            derivative=sum(inner(gradient, way)[0] for gradient, way, _ in pairs),
            scale=math.hypot(*(inner(gradient, way)[1] for gradient, _, way in pairs)),
            epsilon=self._epsilon,
            hides_solvers=self._hides_solvers,
        )
