"""`distinct_rules` divides the calls of functions with a custom rule into those that have one outcome together.

A function's name and line do not tell which rule it is: a function that makes rules gives all of them the same, and
they differ by what they close over, as those of two values of a static argument do. So each rule is traced where
several calls have the same name, line and shapes, and those count as one whose function and rule are equal programs.
JAX makes new objects for each call, so that the identity of functions would tell a hundred uses of one rule apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.proof.rules.same_programs import program_key
from gradscope.tracing.jaxpr.jaxcompat import Jaxpr, is_literal, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctRule:
    """DistinctRule is a rule at operands of some shapes.

    Attributes:
        call: Its first call, or the one at which it is wrong.
        calls: All its calls.
        turn: Which call at its line the first one is, from 1; None where no other rule of its name is used there.
        chosen: The operands of that call that may choose what the function does: `mode is 2`; "" where there are none.
        needs_mesh: Whether the function and its rule run inside a `shard_map` alone, whose types do not say which
            values vary over its axes: they have a collective.
    """

    call: CustomRuleCall
    calls: Sequence[CustomRuleCall]
    turn: int | None
    chosen: str = ""
    needs_mesh: bool = False

    @property
    def uses(self) -> int:
        """The number of its calls."""
        return len(self.calls)


def distinct_rules(calls: Sequence[CustomRuleCall]) -> list[DistinctRule]:
    """Returns the rules of calls, in the order of the first call of each."""
    alike: dict[Hashable, list[CustomRuleCall]] = {}
    for call in calls:
        shapes = tuple(str(atom.aval) for atom in call.equation.invars)
        alike.setdefault((call.rule, call.kept, shapes), []).append(call)
    rule_of: dict[int, tuple[int, Hashable]] = {}
    for number, some in enumerate(alike.values()):
        rule_of |= {id(call): (number, program) for call, program in zip(some, _programs(some), strict=True)}
    return _with_turns(calls, [rule_of[id(call)] for call in calls])


def _with_turns(calls: Sequence[CustomRuleCall], rules: Sequence[Hashable]) -> list[DistinctRule]:
    calls_of: dict[Hashable, list[CustomRuleCall]] = {}
    seen: Counter[Hashable] = Counter()
    first: dict[Hashable, tuple[CustomRuleCall, int]] = {}
    for call, rule in zip(calls, rules, strict=True):
        seen[_place(call)] += 1
        calls_of.setdefault(rule, []).append(call)
        first.setdefault(rule, (call, seen[_place(call)]))
    rows_there = Counter(_place(call) for call, _ in first.values())
    return [
        DistinctRule(
            call=call,
            calls=calls_of[rule],
            turn=turn if rows_there[_place(call)] > 1 else None,
            needs_mesh=_needs_mesh(call),
        )
        for rule, (call, turn) in first.items()
    ]


def _place(call: CustomRuleCall) -> Hashable:
    return call.rule, call.source


def _programs(calls: Sequence[CustomRuleCall]) -> Iterable[Hashable]:
    """Returns what is equal for calls with an equal function and rule, of calls with one name and one shape."""
    same = [(id(call.equation), tuple(call.variables), tuple(call.outputs)) for call in calls]
    first = dict(zip(reversed(same), reversed(calls), strict=True))
    if len(first) == 1:
        return [None] * len(calls)
    programs = {key: None if _needs_mesh(call) else _program(call) for key, call in first.items()}
    numbers: dict[Hashable, int] = {}
    number_of = {key: numbers.setdefault(program, len(numbers)) for key, program in programs.items()}
    return [number_of[key] for key in same]


def _needs_mesh(call: CustomRuleCall) -> bool:
    if not call.is_split:
        return False
    try:
        _program(call)
    except (NameError, TypeError):  # the name of an axis is unknown; or one of several `shard_map` has it
        return True
    return False


def _program(call: CustomRuleCall) -> Hashable:
    """Returns the key of a call's function and rule together.

    A number that a call states does not count, as an operand's value does not, unless its rule needs it for a trace.
    """
    literals = {at: atom.val for at, atom in enumerate(call.equation.invars) if is_literal(atom)}
    try:
        return _traced(call, {})
    except (TypeError, IndexError):  # what JAX raises where Python needs a value
        return _traced(call, literals)


def _traced(call: CustomRuleCall, known: Mapping[int, Any]) -> Hashable:
    return tuple(call.variables), tuple(call.outputs), program_key(*_opened(call, known))


def traced_rule(call: CustomRuleCall) -> Jaxpr:
    """Returns a trace of a call's function and rule, with the outputs and the gradient of each variable.

    Args:
        call: The call.

    Raises:
        NameError: A mesh is needed.
        TypeError: So are the values of operands.
        IndexError: Likewise.
    """
    return _opened(call, {})[0]


def _opened(call: CustomRuleCall, known: Mapping[int, Any]) -> tuple[Jaxpr, tuple[Any, ...]]:
    def pulled_back(operands: Sequence[Any], weights: Sequence[Any]) -> Any:
        values = [known.get(at, operand) for at, operand in enumerate(operands)]
        here = [values[positions[0]] for positions in call.variables]
        outputs, pull_back = jax.vjp(lambda moved: call.outputs_at(values, moved), here)
        return outputs, pull_back(list(weights))

    equation = call.equation
    shapes = [_shape(atom) for atom in equation.invars], [_shape(equation.outvars[at]) for at in call.outputs]
    jaxpr, constants, _ = trace(pulled_back, *shapes)
    return jaxpr, constants


def _shape(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, weak_type=getattr(atom.aval, "weak_type", False))
