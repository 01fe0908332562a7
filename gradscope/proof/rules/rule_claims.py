"""`rule_outcomes` checks the `custom_vjp` and `custom_jvp` functions of a model, each at operands of its calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood, observe_values
from gradscope.proof.claims import Outcome
from gradscope.proof.directions import Directions
from gradscope.proof.rules.arriving_gradients import outputs_with_gradient
from gradscope.proof.rules.compared_rule import ComparedRule
from gradscope.proof.rules.distinct_rules import DistinctRule, distinct_rules
from gradscope.proof.rules.faults.returned_values import WrongValue
from gradscope.proof.rules.faults.wrong_arguments import WrongArgument, name_of, wrong_arguments
from gradscope.proof.rules.nested_rules import function_as_loss
from gradscope.proof.rules.operands.kept_data import calls_keeping_data
from gradscope.proof.rules.operands.operands_nearby import OperandsNearby
from gradscope.proof.rules.operands.rule_operands import CallsToCheck, RuleOperands
from gradscope.proof.rules.rule_calls import CustomRuleCall
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
        zero: The arguments that are zero wherever the rule is checked, which hides what it does with them.
        kept: The arguments that it keeps constant, and that are data.
        inside: The outcomes of the wrong rules of functions that its function calls, where it is wrong.
    """

    rule: DistinctRule
    outcome: Outcome
    arguments: tuple[WrongArgument, ...] = ()
    value: WrongValue | None = None
    zero: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    inside: tuple[RuleOutcome, ...] = ()


def rule_outcomes(
    trace: Trace,
    calls: Sequence[CustomRuleCall],
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
        calls: Its calls of functions with a rule, with the data that these keep constant.
        arguments: Its flat arguments.
        seed: Seed of the random directions.
        widening: What makes a function that computes in a narrow type compute in float64.
        tolerance: The relative error that a rule may have in any case.
        kinks: Whether a call at a kink of the function is looked for, and counts more than one where it is smooth: it
            explains a gradient that is not smooth.
    """
    with widening.context():
        rules = distinct_rules([call for call in calls if call.variables])
    for rule in (each for each in rules if each.needs_mesh):
        yield RuleOutcome(rule=rule, outcome=_NOT_CHECKED)
    rules = [rule for rule in rules if not rule.needs_mesh]
    if not rules:
        return
    with widening.context():
        calls_of = [CallsToCheck(rule, equal=kinks) for rule in rules]

    def observed(values: Sequence[Any]) -> Neighbourhood:
        with widening.context():
            return observe_values(trace, values, (each for some in calls_of for each in some.variables()))

    neighbourhood, directions = observed(arguments), Directions(seed)
    # These directions are others, so that a rule is held to the same ones whatever else is checked.
    nearby = OperandsNearby(trace, arguments, Directions(seed + 1), observed)
    rule_at = partial(
        ComparedRule, liveness=trace.liveness, directions=directions, tolerance=tolerance, widening=widening
    )

    def compared(operands: RuleOperands) -> _Checked:
        found = rule_at(operands.call, operands.values)
        result = found.outcome()
        if result.status == "wrong" and len(operands.call.outputs) > 1:
            with widening.context():
                outputs = outputs_with_gradient(trace, arguments, operands.call)
            found = rule_at(replace(operands.call, outputs=outputs), operands.values)
            result = found.outcome()
        return _Checked(result, operands, found)

    def wrong_inside(operands: RuleOperands) -> tuple[RuleOutcome, ...]:
        with widening.context():
            nested = function_as_loss(operands.call, operands.values, Directions(seed + 2))
            if nested is None:
                return ()
            inside = calls_keeping_data(nested.trace)
        again = rule_outcomes(nested.trace, inside, nested.arguments, seed, widening=widening, tolerance=tolerance)
        return tuple(each for each in again if each.outcome.status == "wrong")

    for rule, to_check in zip(rules, calls_of, strict=True):
        here = to_check.operands(neighbourhood)
        found = list(map(compared, here))
        zero: Sequence[str] = ()
        if not any(each.outcome.status == "wrong" for each in found):
            elsewhere, zero = nearby.of(to_check, here)
            found += _wrong_nearby(compared, elsewhere)
        kept = tuple(name_of(trace, rule.call, rule.call.variables[at][0]) for at in sorted(rule.call.kept))
        yield replace(_worst(trace, rule, found, wrong_inside, kinks=kinks), zero=tuple(zero), kept=kept)


class _Checked(NamedTuple):
    """A `_Checked` is a rule at the operands of a call, and how it does there."""

    outcome: Outcome
    operands: RuleOperands
    rule: ComparedRule


def _wrong_nearby(compared: Callable[[RuleOperands], _Checked], nearby: Iterable[RuleOperands]) -> Iterator[_Checked]:
    """Yields where a rule is wrong at operands that the model may get later; it may never get those with a NaN."""
    for operands in nearby:
        try:
            found = compared(operands)
        except RuntimeError:  # the function refuses them
            continue
        if found.outcome.status == "wrong" and not found.outcome.not_finite:
            yield found


def _worst(
    trace: Trace,
    rule: DistinctRule,
    found: Sequence[_Checked],
    wrong_inside: Callable[[RuleOperands], tuple[RuleOutcome, ...]],
    *,
    kinks: bool,
) -> RuleOutcome:
    if not found:
        return RuleOutcome(rule=rule, outcome=_NOT_CHECKED)
    at_kinks = [each for each in found if kinks and each.outcome.status == "not smooth here"]
    worst = max(found, key=lambda each: each.outcome.rank)
    if worst.outcome.status == "correct" and at_kinks:
        worst = at_kinks[0]
    outcome, operands, compared = worst
    there = replace(rule, call=operands.call, chosen=operands.chosen)
    if outcome.status == "wrong":
        arguments = wrong_arguments(trace, operands.call, compared)
        value, inside = compared.wrong_value(), wrong_inside(operands)
        return RuleOutcome(rule=there, outcome=outcome, arguments=arguments, value=value, inside=inside)
    return RuleOutcome(rule=there if at_kinks and outcome.status == "not smooth here" else rule, outcome=outcome)
