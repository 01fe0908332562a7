"""`operands_to_check` returns the operands of calls at which a rule is checked, where one call may not do for all.

A single number among the operands may choose what the function and its rule do, as a mode does: the rule is checked at
each value that integers and truth values have, and at each sign of others. Other operands do not choose, so that a
rule without such numbers is checked in its first call alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood
from gradscope.proof.rules.distinct_rules import DistinctRule
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.custom_rules import argument_names
from gradscope.tracing.jaxpr.frames import Frame, iterations
from gradscope.tracing.jaxpr.jaxcompat import closed_over, is_literal

#: The most values of the numbers that choose at which a rule is checked.
_MOST_VALUES: Final = 8
#: The most iterations of one call in which these values are looked for.
_MOST_ITERATIONS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOperands:
    """`RuleOperands` are the operands of a call in one iteration.

    Attributes:
        call: The call.
        values: The operands.
        chosen: The numbers among them that may choose what the function does, integers and truth values, and those that
            other calls have other values of: `mode is 2`; "" where there are none.
    """

    call: CustomRuleCall
    values: list[Any]
    chosen: str = ""


def variables_to_observe(rule: DistinctRule) -> Iterator[FrameVariable]:
    """Yields the operands of the calls that may be checked."""
    for call in _calls(rule):
        yield from (FrameVariable(call.frame, atom) for atom in call.equation.invars if not is_literal(atom))


def operands_to_check(neighbourhood: Neighbourhood, rule: DistinctRule) -> list[RuleOperands]:
    """Returns the operands at which a rule is checked; none where they are unknown, or no call runs.

    Args:
        neighbourhood: What was observed of the calls.
        rule: The rule.
    """
    choosing = _choosing(rule.call)
    found: dict[Hashable, RuleOperands] = {}
    for call in _calls(rule):
        for iteration in islice(iterations(call.frame.loops), _MOST_ITERATIONS):
            if choosing or not found:
                operands = _operands(neighbourhood, call, iteration)
                if operands is not None:
                    key = tuple(_kind(operands[at]) for at in choosing)
                    found.setdefault(key, RuleOperands(call=call, values=operands))
    keys = list(found)
    kept = keys if len(keys) <= _MOST_VALUES else [*keys[: _MOST_VALUES - 1], keys[-1]]
    said = [
        at for number, at in enumerate(choosing)
        if _is_discrete(rule.call.equation.invars[at].aval) or len({key[number] for key in keys}) > 1  # type: ignore[index]
    ]  # fmt: skip
    return [_saying(found[key], said) for key in kept]


def _calls(rule: DistinctRule) -> Sequence[CustomRuleCall]:
    may_not_run = any(_is_in_branch(call.frame) for call in rule.calls[:1])
    return rule.calls if may_not_run or _choosing(rule.call) else rule.calls[:1]


def _is_in_branch(frame: Frame) -> bool:
    return frame.transfer.exclusive or (frame.parent is not None and _is_in_branch(frame.parent))


def _choosing(call: CustomRuleCall) -> list[int]:
    own = range(closed_over(call.equation), len(call.equation.invars))
    return [at for at in own if getattr(call.equation.invars[at].aval, "size", 0) == 1]


def _operands(neighbourhood: Neighbourhood, call: CustomRuleCall, iteration: tuple[int, ...]) -> list[Any] | None:
    if not neighbourhood.was_executed(call.frame, iteration):
        return None
    values = [neighbourhood.value(FrameVariable(call.frame, atom), iteration) for atom in call.equation.invars]
    return None if any(value is None for value in values) else values


def _kind(value: Any) -> Hashable:
    number = np.asarray(value).reshape(())
    return str(number) if _is_discrete(number) else str(np.sign(number))


def _is_discrete(number: Any) -> bool:
    return not jnp.issubdtype(number.dtype, jnp.inexact)


def _saying(operands: RuleOperands, said: Sequence[int]) -> RuleOperands:
    equation = operands.call.equation
    names = argument_names(equation)
    chosen = ", ".join(
        f"{names.get(at) or f'argument {at - closed_over(equation) + 1}'} is {_shown(operands.values[at])}"
        for at in said
    )
    return RuleOperands(call=operands.call, values=[jnp.asarray(each) for each in operands.values], chosen=chosen)


def _shown(value: Any) -> str:
    number = np.asarray(value).reshape(())
    return str(number) if _is_discrete(number) else f"{float(number):.4g}"
