"""Which equations the loss depends on.

A traced loss may compute more than the loss: updated batch statistics, metrics, values nobody reads. An equation is
*live* when the loss depends on one of its outputs. The rule is that of dead code elimination: needed outputs make
an equation live, a live equation makes its operands needed, and a loop is followed until nothing more is.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.tracing.frames import Frame
from gradscope.tracing.jaxcompat import Equation, is_literal, scan_arity


def mark_live(frame: Frame, needed_outputs: Sequence[bool]) -> list[bool]:
    """Mark the live equations of `frame` and of all frames inside it.

    Args:
        frame: The frame; its `live` set grows.
        needed_outputs: For each output of its jaxpr, whether it is needed.

    Returns:
        For each variable the frame receives, whether it is needed.
    """
    needed = {
        atom
        for atom, wanted in zip(frame.jaxpr.outvars, needed_outputs, strict=True)
        if wanted and not is_literal(atom)
    }
    frame.needed_outputs |= needed
    for number in reversed(range(len(frame.jaxpr.eqns))):
        equation = frame.jaxpr.eqns[number]
        outputs = [variable in needed for variable in equation.outvars]
        if any(outputs):
            frame.live.add(number)
            wanted = _needed_operands(frame, number, equation, outputs)
            needed.update(a for a, want in zip(equation.invars, wanted, strict=True) if want and not is_literal(a))
    return [variable in needed for variable in frame.jaxpr.invars]


def _needed_operands(frame: Frame, number: int, equation: Equation, outputs: Sequence[bool]) -> Sequence[bool]:
    children = frame.children.get(number, ())
    everything = [True] * len(equation.invars)
    if not children:
        return everything
    kind = children[0].kind
    if kind in ("call", "remat", "shard_map"):
        return mark_live(children[0], outputs)
    if kind == "scan":
        return _needed_by_scan(children[0], equation, list(outputs))
    if kind == "cond":
        per_branch = [mark_live(branch, outputs) for branch in children]
        return [True, *map(any, zip(*per_branch, strict=True))]
    for child in children:  # a while loop or a custom rule: taken as a whole
        mark_live(child, [True] * len(child.jaxpr.outvars))
    return everything


def _needed_by_scan(body: Frame, equation: Equation, outputs: list[bool]) -> list[bool]:
    arity = scan_arity(equation)
    carries = slice(arity.constants, arity.constants + arity.carries)
    while True:
        operands = mark_live(body, outputs)
        grown = [old or new for old, new in zip(outputs[: arity.carries], operands[carries], strict=True)]
        if grown == outputs[: arity.carries]:
            # A carry that is needed after the loop is needed before it, whether or not a turn reads it.
            return [*operands[: carries.start], *grown, *operands[carries.stop :]]
        outputs[: arity.carries] = grown
