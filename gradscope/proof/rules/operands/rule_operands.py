"""`operands_to_check` returns the operands of calls at which a rule is checked, where one call may not do for all.

A single number among the operands may choose what the function and its rule do, as a mode does: the rule is checked at
each value that integers and truth values have, and at each sign of others. Other operands choose by conditions: the
rule is checked at the first operands that take a side of one, as far as calls and iterations take it. An operand that
is zero throughout hides what the derivative multiplies by it, as the first state of a recurrence does: the rule is
checked at the first operands where it is not, too. So a rule without any of these is checked in its first call alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.dtypes import is_key
from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood
from gradscope.proof.rules.distinct_rules import DistinctRule
from gradscope.proof.rules.operands.rule_conditions import RuleConditions, Side
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.derivatives.custom_rules import argument_name
from gradscope.tracing.jaxpr.frames import Frame, iterations
from gradscope.tracing.jaxpr.jaxcompat import closed_over, is_literal

#: The most values of the numbers that choose at which a rule is checked.
_MOST_VALUES: Final = 8
#: The most iterations of one call in which these values are looked for.
_MOST_ITERATIONS: Final = 10_000
#: The most bytes of operands, of all calls of a rule, that are observed to find the sides of conditions.
_MOST_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOperands:
    """`RuleOperands` are the operands of a call in one iteration.

    Attributes:
        call: The call.
        values: The operands.
        chosen: The numbers among them that may choose what the function does, integers and truth values, and those that
            other calls have other values of: `mode is 2`; and the conditions that take another side there; "" where
            there are none.
    """

    call: CustomRuleCall
    values: list[Any]
    chosen: str = ""


class CallsToCheck:
    """`CallsToCheck` are the calls of a rule, of which some are chosen to check it at.

    Args:
        rule: The rule.
        equal: Whether operands at which two compared values are equal are looked for.
    """

    def __init__(self, rule: DistinctRule, *, equal: bool) -> None:
        own = range(closed_over(rule.call.equation), len(rule.call.equation.invars))
        self._choosing = [at for at in own if _is_number(rule.call.equation.invars[at])]
        self._conditions = RuleConditions(rule.call, equal=equal)
        several = equal or len(rule.calls) > 1 or any(loop.length != 1 for loop in rule.call.frame.loops)
        observable = several and _size_bytes(rule.calls) <= _MOST_BYTES
        self._to_take = self._conditions.all() if observable else frozenset()
        self._arrays = [at for at in own if _is_array(rule.call.equation.invars[at])] if observable else []
        may_not_run = any(_is_in_branch(call.frame) for call in rule.calls[:1])
        # The first state of a recurrence is that of its first call, and what the last one reads tells as much as all.
        ends = [*rule.calls[:1], *rule.calls[1:][-1:]] if self._arrays else rule.calls[:1]
        self._calls = rule.calls if may_not_run or self._choosing or self._to_take else ends

    def variables(self) -> Iterator[FrameVariable]:
        """Yields the operands of the calls that may be checked."""
        for call in self._calls:
            yield from (FrameVariable(call.frame, atom) for atom in call.equation.invars if not is_literal(atom))

    def operands(self, neighbourhood: Neighbourhood) -> list[RuleOperands]:
        """Returns the operands at which the rule is checked; none where they are unknown, or no call runs.

        Args:
            neighbourhood: What was observed of the calls.
        """
        found: dict[Hashable, _Chosen] = {}
        further: list[_Chosen] = []
        untaken, zeros = self._to_take, frozenset[int]()
        for call, operands in self._all(neighbourhood):
            taken = self._conditions.taken(operands) if untaken else frozenset()
            key = tuple(_kind(operands[at]) for at in self._choosing)
            zeros = zeros if found else frozenset(self._arrays)
            filled = frozenset(at for at in zeros if np.any(operands[at]))
            if key not in found:
                found[key] = _Chosen(call, operands, key, taken)
            elif taken & untaken or filled:
                further.append(_Chosen(call, operands, key, taken))
            untaken, zeros = untaken - taken, zeros - filled
            if not (untaken or zeros or self._choosing):
                break
        first = list(found.values())
        kept = first if len(first) <= _MOST_VALUES else [*first[: _MOST_VALUES - 1], first[-1]]
        return self._saying([*kept, *further[:_MOST_VALUES]])

    def _all(self, neighbourhood: Neighbourhood) -> Iterator[tuple[CustomRuleCall, list[Any]]]:
        for call in self._calls:
            for iteration in islice(iterations(call.frame.loops), _MOST_ITERATIONS):
                operands = _operands(neighbourhood, call, iteration)
                if operands is not None:
                    yield call, operands

    def _saying(self, chosen: Sequence[_Chosen]) -> list[RuleOperands]:
        """Returns operands with what they differ by from the others that are checked."""
        told = [
            at for number, at in enumerate(self._choosing)
            if len({each.key[number] for each in chosen}) > 1 or any(_is_discrete(each.operands[at]) for each in chosen)
        ]  # fmt: skip
        found: list[RuleOperands] = []
        for each in chosen:
            others = frozenset[Side]().union(*(other.taken for other in chosen if other is not each))
            alone = each.taken - self._conditions.equalities()
            words = self._conditions.words(each.taken, others if len(chosen) > 1 else alone)
            told_by_numbers = [other.key for other in chosen].count(each.key) == 1 < len(chosen)
            said = ", ".join(filter(None, [*_numbers(each, told), "" if told_by_numbers else words]))
            values = [jnp.asarray(value) for value in each.operands]
            found.append(RuleOperands(call=each.call, values=values, chosen=said))
        return found


class _Chosen(NamedTuple):
    """`_Chosen` are operands of a call, the kinds of the numbers among them, and the sides of conditions they take."""

    call: CustomRuleCall
    operands: list[Any]
    key: tuple[str, ...]
    taken: frozenset[Side]


def _size_bytes(calls: Iterable[CustomRuleCall]) -> int:
    """Returns the bytes of the operands of calls, in all iterations."""
    return sum(
        math.prod(loop.length or 1 for loop in call.frame.loops) * atom.aval.size * atom.aval.dtype.itemsize
        for call in calls
        for atom in call.equation.invars
        if not is_literal(atom)
    )


def _is_in_branch(frame: Frame) -> bool:
    return frame.transfer.exclusive or (frame.parent is not None and _is_in_branch(frame.parent))


def _operands(neighbourhood: Neighbourhood, call: CustomRuleCall, iteration: tuple[int, ...]) -> list[Any] | None:
    if not neighbourhood.was_executed(call.frame, iteration):
        return None
    values = [neighbourhood.value(FrameVariable(call.frame, atom), iteration) for atom in call.equation.invars]
    if any(value is None for value in values):
        return None
    return [_as_key(value, atom) for value, atom in zip(values, call.equation.invars, strict=True)]


def _is_number(atom: Any) -> bool:
    return getattr(atom.aval, "size", 0) == 1 and not is_key(str(atom.aval.dtype))


def _is_array(atom: Any) -> bool:
    return getattr(atom.aval, "size", 0) > 1 and jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def _as_key(value: Any, atom: Any) -> Any:
    """Returns a value, of a random key the key and not its data, which is what is observed."""
    dtype = atom.aval.dtype
    if not is_key(str(dtype)) or getattr(value, "dtype", None) == dtype:
        return value
    return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(jnp.zeros((), dtype)))


def _kind(value: Any) -> str:
    number = np.asarray(value).reshape(())
    return str(number) if _is_discrete(number) else str(np.sign(number))


def _numbers(chosen: _Chosen, told: Sequence[int]) -> Iterator[str]:
    for at in told:
        yield f"{argument_name(chosen.call.equation, at)} is {_shown(chosen.operands[at])}"


def _is_discrete(number: Any) -> bool:
    return not jnp.issubdtype(jnp.result_type(number), jnp.inexact)


def _shown(value: Any) -> str:
    number = np.asarray(value).reshape(())
    if _is_discrete(number):
        return str(number)
    return f"{complex(number) if np.iscomplexobj(number) else float(number):.4g}"
