"""`rule_outcomes` checks the `custom_vjp` and `custom_jvp` functions of a model, each at the operands of one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood, is_hidden, observe_values
from gradscope.proof.claims import Claim, Outcome, outcome
from gradscope.proof.directions import Directions, inner
from gradscope.proof.float64 import coarsest_epsilon
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.custom_rules import CustomRule, custom_rule
from gradscope.tracing.jaxpr.frames import Frame, source_in
from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, is_literal
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRuleCall:
    """CustomRuleCall is one call of a function with a custom differentiation rule.

    Attributes:
        rule: The function and its rule.
        frame: The frame with the call.
        number: The number of the equation in the frame.
    """

    rule: CustomRule
    frame: Frame
    number: int

    @property
    def equation(self) -> Equation:
        """The equation of the call."""
        return self.frame.jaxpr.eqns[self.number]

    @property
    def source(self) -> str | None:
        """`file:line` of the call in the user's code."""
        return source_in(self.frame, self.equation)


def rule_outcomes(trace: Trace, arguments: Sequence[Any], seed: int) -> Iterator[tuple[CustomRuleCall, Outcome]]:
    """Yields the outcome of one call for each function with a custom rule and each shape of operands."""
    calls = list(_calls(trace))
    operands = (
        FrameVariable(call.frame, atom) for call in calls for atom in call.equation.invars if not is_literal(atom)
    )
    if not calls:
        return
    neighbourhood = observe_values(trace, arguments, operands)
    directions = Directions(seed)
    for call in calls:
        values = _operands(neighbourhood, call)
        if values is None:
            yield call, Outcome(status="not checked", error=math.nan, expected=math.nan)
        else:
            yield call, _RuleOfCall(call, trace.liveness, directions).outcome(values)


def _calls(trace: Trace) -> Iterator[CustomRuleCall]:
    seen: set[object] = set()
    for frame in trace.root.walk():
        for number in sorted(trace.liveness.live(frame)):
            equation = frame.jaxpr.eqns[number]
            rule = None if is_hidden(frame) else custom_rule(equation)
            kind = (rule, tuple(str(atom.aval) for atom in equation.invars))
            if rule is not None and kind not in seen and any(map(is_inexact, equation.outvars)):
                seen.add(kind)
                yield CustomRuleCall(rule=rule, frame=frame, number=number)


def _operands(neighbourhood: Neighbourhood, call: CustomRuleCall) -> list[Any] | None:
    """Returns the operands of a call in the first iteration of the loops around it; None where they are unknown."""
    iteration = (0,) * len(call.frame.loops)
    if not neighbourhood.was_executed(call.frame, iteration):
        return None
    values = [neighbourhood.value(FrameVariable(call.frame, atom), iteration) for atom in call.equation.invars]
    return None if any(value is None for value in values) else [jnp.asarray(value) for value in values]


class _RuleOfCall:
    """_RuleOfCall compares a custom rule with finite differences of its function.

    Args:
        call: A call of the function.
        liveness: Which equations of the function count.
        directions: The source of random directions.
    """

    def __init__(self, call: CustomRuleCall, liveness: Liveness, directions: Directions) -> None:
        self._equation = equation = call.equation
        inside = call.frame.children.get(call.number, [])
        types = [float(jnp.finfo(v.aval.dtype).eps) for v in equation.outvars if is_inexact(v)]
        self._epsilon = max(*types, coarsest_epsilon((frame for child in inside for frame in child.walk()), liveness))
        self._directions = directions
        self._chosen = [n for n, atom in enumerate(equation.invars) if is_inexact(atom)]
        self._outputs = jax.jit(self._run)

    def outcome(self, operands: list[Any]) -> Outcome:
        """Returns the outcome of the rule's derivative at some operands."""
        here = [operands[number] for number in self._chosen]
        along = self._directions.along(here)
        weights = self._directions.along([np.ones_like(each) for each in self._outputs(operands, here)])
        moved = self._directions.nearby(here)
        claim = self._claim(operands, here, along, weights)
        return outcome(claim, lambda: self._claim(operands, moved, along, weights))

    def _claim(
        self, operands: list[Any], here: list[Any], along: Sequence[np.ndarray], weights: Sequence[np.ndarray]
    ) -> Claim:
        def loss_at(step: float) -> float:
            moved = [each + (step * way).astype(way.dtype) for each, way in zip(here, along, strict=True)]
            made = self._outputs(operands, moved)
            return sum(inner(each, weight)[0] for each, weight in zip(made, weights, strict=True))

        _, pull_back = jax.vjp(lambda chosen: self._run(operands, chosen), here)
        (gradients,) = pull_back([jnp.asarray(weight) for weight in weights])
        terms = [inner(gradient, way) for gradient, way in zip(gradients, along, strict=True)]
        return Claim(
            loss_at=loss_at,
            derivative=sum(slope for slope, _ in terms),
            scale=math.hypot(*(size for _, size in terms)),
            epsilon=self._epsilon,
        )

    def _run(self, operands: list[Any], chosen: Sequence[Any]) -> list[Any]:
        replaced = dict(zip(self._chosen, chosen, strict=True))
        made = bind(self._equation, [replaced.get(number, value) for number, value in enumerate(operands)])
        return [value for value, variable in zip(made, self._equation.outvars, strict=True) if is_inexact(variable)]
