"""Satisfied terms are rectifiers at the end of a loss, which are zero where a margin is kept.

The loss of a hinge, a triplet or a contrast of pairs is max(0, .), summed. Where every example keeps the margin it is
exactly zero, and so is every gradient: nothing is wrong, and nothing is left to learn. So it is where some bits of a
divergence are free, max(1, .). Dead units of a network are zero, too, but the loss is no sum of them: weights, a
nonlinear function, or a difference that is squared are between.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gradscope.capturing.explain.zeros.zero_uses import RECTIFIERS, EquationUse
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS, SLICES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.gradient_barriers import location_of
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal

#: Sum, or choose from, their operand's elements.
_SUMS: Final = COPIES | SLICES | {"reduce_sum", "neg", "gather", "select_n", "psum", "concatenate"}
#: Zero where their operand is.
_POWERS: Final = frozenset({"integer_pow", "square"})


class _Part(NamedTuple):
    """A `_Part` is a variable made of a rectifier's output, and whether of nothing else."""

    variable: FrameVariable
    alone: bool


def satisfied(root: Frame, flow: ForwardFlow, use: EquationUse) -> str:
    """Returns the reason where a use has no gradient because a term of the loss is at its margin's side; "" elsewhere.

    Args:
        root: The root frame; its first output is the loss.
        flow: The steps of the trace.
        use: The use, at which a gradient arrives and from which none comes back.
    """
    floor = use.floor()
    place = (use.frame, use.number) if floor is not None else _rectifier(root, use)
    if place is None or len(use.outputs) != 1 or not _is_term_of_loss(root, flow, use.frame, use.outputs[0]):
        return ""
    return f"satisfied: the output of {location_of(*place)} is {floor or 0:g}, and a term of the loss"


def _rectifier(root: Frame, use: EquationUse) -> tuple[Frame, int] | None:
    """Returns the rectifier that makes the zeros which a use squares or multiplies."""
    equation = use.frame.jaxpr.eqns[use.number]
    if np.any(np.asarray(use.operands[use.positions[0]])) or equation.primitive.name not in _POWERS | {"mul"}:
        return None
    frames = {frame.key: frame for frame in root.walk()}
    key = resolve(use.frame, equation.invars[use.positions[0]])
    while key is not None and key.equation != OPERAND:
        frame = frames[key.frame]
        maker = frame.jaxpr.eqns[key.equation]
        if maker.primitive.name in RECTIFIERS:
            return frame, key.equation
        if maker.primitive.name not in COPIES | {"neg"}:
            return None
        key = resolve(frame, maker.invars[0])
    return None


def _is_term_of_loss(root: Frame, flow: ForwardFlow, frame: Frame, output: Atom) -> bool:
    """Returns whether a loss is a sum of a value's elements, or of powers of them, and of something else."""
    start = _Part(FrameVariable(frame, output), alone=True)
    seen, waiting = {start}, [start]
    while waiting:
        part = waiting.pop()
        for step in flow.steps(part.variable):
            if not is_inexact(step.to.atom):
                continue  # a count of what is above zero
            alone = part.alone
            if step.way == "compute":
                equation = step.frame.jaxpr.eqns[step.number]
                if not _is_linear(equation, part):
                    return False
                alone = alone and equation.primitive.name not in ADDITIONS
            reached = _Part(step.to, alone)
            if reached not in seen:
                seen.add(reached)
                waiting.append(reached)
    loss = FrameVariable(root, root.jaxpr.outvars[0])
    return any(part.variable == loss for part in seen)


def _is_linear(equation: Equation, part: _Part) -> bool:
    """Returns whether an equation adds up, scales or, of a part alone, raises to a power."""
    name = equation.primitive.name
    if name in _SUMS or name in ADDITIONS:
        return True
    uses = [position for position, atom in enumerate(equation.invars) if not is_literal(atom)
            and atom is part.variable.atom]  # fmt: skip
    if name in MULTIPLICATIONS:
        return uses == [0] or (name == "mul" and (uses == [1] or part.alone))
    return name in _POWERS and part.alone
