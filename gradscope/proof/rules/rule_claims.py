"""`rule_outcomes` checks the `custom_vjp` and `custom_jvp` functions of a model, each at operands of its calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gradscope.capturing.explain.zeros.neighbourhood import observe_values
from gradscope.proof.claims import Outcome
from gradscope.proof.directions import Directions
from gradscope.proof.rules.arriving_gradients import outputs_with_gradient
from gradscope.proof.rules.compared_rule import ComparedRule
from gradscope.proof.rules.distinct_rules import DistinctRule, distinct_rules
from gradscope.proof.rules.faults.returned_values import WrongValue
from gradscope.proof.rules.faults.wrong_arguments import WrongArgument, wrong_arguments
from gradscope.proof.rules.rule_calls import custom_rule_calls
from gradscope.proof.rules.rule_operands import CallsToCheck, RuleOperands
from gradscope.proof.wide_programs import Widening
from gradscope.tracing.tracer import Trace

_NOT_CHECKED: Final = Outcome(status="not checked", error=math.nan, expected=math.nan)


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
        ComparedRule, liveness=trace.liveness, directions=directions, tolerance=tolerance, widening=widening
    )
    for rule, calls in zip(rules, calls_of, strict=True):
        found: list[tuple[Outcome, RuleOperands, ComparedRule]] = []
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
