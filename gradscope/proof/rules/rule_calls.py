"""`custom_rule_calls` yields the calls of the functions with a custom differentiation rule in a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradscope.capturing.explain.zeros.neighbourhood import is_barred, is_split
from gradscope.naming import PARAM
from gradscope.proof.rules.on_devices import on_devices
from gradscope.proof.rules.stopped_operands import stopped_operands
from gradscope.tracing.dataflow.constants_before_rules import passes_tangents
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.reachability import Reach, is_inexact, reachability_from
from gradscope.tracing.jaxpr.derivatives.custom_rules import CustomRule, constants_of_functions, stated_rule
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, source_in, splits_around
from gradscope.tracing.jaxpr.jaxcompat import Equation, bind, closed_over, is_literal, sees_symbolic_zeros
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRuleCall:
    """CustomRuleCall is one call of a function with a custom differentiation rule.

    Attributes:
        rule: The function and its rule.
        frame: The frame with the call.
        number: The number of the equation in the frame.
        variables: The positions of each distinct operand that the rule differentiates there, in the order of the first.
        outputs: The positions of the outputs that the rule gets a gradient of; all where it gets none.
        constant: The numbers of the variables whose gradient reaches no argument of the loss, such as a number in the
            program, or that the function reads through `stop_gradient` alone.
        data: The numbers of those that are made of the batch alone, where others are made of parameters.
        kept: The numbers of those among them that the rule keeps constant.
    """

    rule: CustomRule
    frame: Frame
    number: int
    variables: Sequence[tuple[int, ...]]
    outputs: Sequence[int]
    constant: frozenset[int] = frozenset()
    data: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()

    @property
    def equation(self) -> Equation:
        """The equation of the call."""
        return self.frame.jaxpr.eqns[self.number]

    @property
    def source(self) -> str | None:
        """`file:line` of the call in the user's code."""
        return source_in(self.frame, self.equation)

    @property
    def is_split(self) -> bool:
        """Whether each of several devices makes the call with its own part of the values."""
        return is_split(self.frame)

    @property
    def typed_split(self) -> Equation | None:
        """The `shard_map` in which alone the call runs, as its values have types that say over which axes they vary."""
        splits = list(splits_around(self.frame))
        return splits[0] if len(splits) == 1 and splits[0].params.get("check_vma") else None

    def frames_inside(self) -> list[Frame]:
        """Returns the frames of the function."""
        return [frame for child in self.frame.children.get(self.number, []) for frame in child.walk()]

    def outputs_at(self, operands: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the outputs that the rule gets a gradient of.

        Args:
            operands: The operands.
            variables: The values of the distinct operands that the rule differentiates, in the place of those.
        """
        values = list(operands)
        for positions, value in zip(self.variables, variables, strict=True):
            for at in positions:
                values[at] = value
        made = (
            bind(self.equation, values)
            if self.typed_split is None
            else on_devices(self.typed_split, self.equation, values)
        )
        return [made[at] for at in self.outputs]


def custom_rule_calls(trace: Trace) -> Iterator[CustomRuleCall]:
    """Yields the calls of functions with a custom rule that count for the loss."""
    varying = _varying(trace, lambda leaf: leaf.differentiated)
    trained = _varying(trace, lambda leaf: leaf.differentiated and leaf.family == PARAM)
    for frame in trace.root.walk():
        for number in () if is_barred(frame) else sorted(trace.liveness.live(frame)):
            equation = frame.jaxpr.eqns[number]
            rule = stated_rule(equation)
            if rule is not None and any(map(is_inexact, equation.outvars)):
                variables = distinct_variables(equation, partial(_is_constant, trace, frame))
                atoms = [equation.invars[positions[0]] for positions in variables]
                constant = frozenset(
                    at for at, atom in enumerate(atoms) if is_literal(atom) or FrameVariable(frame, atom) not in varying
                )
                stopped = stopped_operands(equation)
                constant |= {at for at, positions in enumerate(variables) if stopped.issuperset(positions)}
                data = frozenset(
                    at for at, atom in enumerate(atoms) if is_literal(atom) or FrameVariable(frame, atom) not in trained
                )
                yield CustomRuleCall(
                    rule=rule,
                    frame=frame,
                    number=number,
                    variables=variables,
                    outputs=_differentiated(trace, frame, equation),
                    constant=constant,
                    data=data - constant if len(data) < len(atoms) else frozenset(),
                )


def _varying(trace: Trace, counts: Callable[[Leaf], bool]) -> Collection[FrameVariable]:
    """Returns the variables that are differentiated where some arguments are."""
    variables = zip(trace.arguments, trace.root.jaxpr.invars, strict=False)
    start = (FrameVariable(trace.root, variable) for leaf, variable in variables if counts(leaf))
    return ForwardFlow().closure(start, passes_tangents)


def calls_of_stated_rules(trace: Trace) -> int:
    """Returns how often a loss calls functions with a rule that JAX does not state, in all iterations of loops."""
    calls = (call for call in custom_rule_calls(trace) if not call.rule.of_jax)
    return sum(math.prod(loop.length or 1 for loop in call.frame.loops) for call in calls)


def gradients_made_through(trace: Trace, functions: Sequence[str]) -> dict[int, str]:
    """Returns the numbers of the arguments whose gradients the rule of a function makes, with the function's name.

    Args:
        trace: The traced loss.
        functions: The names of the functions.
    """
    found: dict[int, str] = {}
    for name in functions:
        calls = [call for call in custom_rule_calls(trace) if call.rule.function == name]
        outputs = [
            ValueKey(call.frame.key, call.number, at)
            for call in calls
            for at, variable in enumerate(call.equation.outvars)
            if is_inexact(variable)
        ]
        reached = enumerate(reachability_from(trace.root, outputs).arguments)
        found |= {number: name for number, reach in reached if reach is Reach.GRADIENT}
    return found


def _differentiated(trace: Trace, frame: Frame, equation: Equation) -> Sequence[int]:
    inexact = [at for at, variable in enumerate(equation.outvars) if is_inexact(variable)]
    reached = [at for at in inexact if trace.reachability.of(frame, equation.outvars[at]) is Reach.GRADIENT]
    return reached or inexact


def _is_constant(trace: Trace, frame: Frame, equation: Equation, position: int) -> bool:
    atom = equation.invars[position]
    if position in constants_of_functions(equation):
        return True
    if is_literal(atom):
        return sees_symbolic_zeros(equation)
    return FrameVariable(frame, atom) in trace.constants_before_rules


def distinct_variables(
    equation: Equation, is_constant: Callable[[Equation, int], bool] | None = None
) -> list[tuple[int, ...]]:
    """Returns the positions of each distinct operand that a rule differentiates, in the order of the first.

    Args:
        equation: The call of a function with a rule.
        is_constant: Returns whether the rule is informed that the operand at a position is constant.
    """
    positions: dict[object, list[int]] = {}
    for at, atom in enumerate(equation.invars):
        if is_inexact(atom) and at >= closed_over(equation) and not (is_constant and is_constant(equation, at)):
            positions.setdefault(at if is_literal(atom) else atom, []).append(at)
    return [tuple(each) for each in positions.values()]
