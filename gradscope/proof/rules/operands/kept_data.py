"""Kept data are operands made of the batch alone that a rule keeps constant, beside others that are trained.

The rule of a loss returns `None`, or zeros, for its labels: nobody asks for their gradient, and no parameter gets one
through them. A rule that returns zeros for what is trained is wrong, and so is one that differentiates nothing, as all
that it is given is data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from gradscope.primitive_groups import COPIES
from gradscope.proof.rules.distinct_rules import traced_rule
from gradscope.proof.rules.rule_calls import CustomRuleCall, custom_rule_calls
from gradscope.tracing.dataflow.reachability import Reach, reachability_from
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, frame_tree, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.tracer import Trace


def calls_keeping_data(trace: Trace) -> list[CustomRuleCall]:
    """Returns the calls of functions with a custom rule, with the data that their rules keep constant."""
    return list(_keeping_data(custom_rule_calls(trace)))


def _keeping_data(calls: Iterable[CustomRuleCall]) -> Iterator[CustomRuleCall]:
    known: dict[object, frozenset[int]] = {}
    for call in calls:
        key = id(call.equation), tuple(call.variables), tuple(call.outputs)
        if call.data and key not in known:
            known[key] = _without_gradient(call)
        kept = call.data & known[key] if call.data else frozenset[int]()
        yield replace(call, kept=kept, constant=call.constant | kept) if kept else call


def kept_operands(calls: Iterable[CustomRuleCall]) -> Mapping[int, frozenset[int]]:
    """Returns the positions of the operands that are kept constant wherever an equation is run, by its identity."""
    found: dict[int, frozenset[int]] = {}
    for call in calls:
        positions = frozenset(at for number in call.kept for at in call.variables[number])
        found[id(call.equation)] = found.get(id(call.equation), positions) & positions
    return {equation: positions for equation, positions in found.items() if positions}


def leaves_kept(trace: Trace, calls: Iterable[CustomRuleCall]) -> Mapping[int, str]:
    """Returns the numbers of the arguments that rules keep constant, with the name of a function that has the rule.

    Args:
        trace: The traced loss.
        calls: Its calls of functions with a rule, with the data that these keep constant.
    """
    found: dict[int, str] = {}
    for call in calls:
        atoms = (call.equation.invars[at] for number in call.kept for at in call.variables[number])
        values = [value for atom in atoms if (value := resolve(call.frame, atom)) is not None]
        reached = enumerate(reachability_from(trace.root, values).arguments if values else ())
        found |= {number: call.rule.function for number, reach in reached if reach is Reach.GRADIENT}
    return found


def _without_gradient(call: CustomRuleCall) -> frozenset[int]:
    """Returns the variables for which the rule of a call returns zeros, whatever the operands and gradients are."""
    try:
        jaxpr = traced_rule(call)
    except (NameError, TypeError, IndexError):  # it runs inside its `shard_map` alone, or needs the values of operands
        return frozenset()
    root = frame_tree(jaxpr)
    is_zero = partial(_is_zero, {frame.key: frame for frame in root.walk()})
    gradients = jaxpr.outvars[len(call.outputs) :]
    return frozenset(at for at, atom in enumerate(gradients) if is_zero(root, atom))


def _is_zero(frames: Mapping[FrameKey, Frame], frame: Frame, atom: Atom) -> bool:
    if is_literal(atom):
        return not np.any(atom.val)
    key = resolve(frame, atom)
    return key is not None and key.equation != OPERAND and _are_zeros_made(frames, key)


def _are_zeros_made(frames: Mapping[FrameKey, Frame], key: ValueKey) -> bool:
    around = frames[key.frame]
    equation = around.jaxpr.eqns[key.equation]
    return equation.primitive.name in COPIES and all(_is_zero(frames, around, each) for each in equation.invars)
