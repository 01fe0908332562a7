"""Loop steps lead into, through and out of loops to a value, in some of their iterations."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.forward import FrameVariable, Step
from gradscope.tracing.jaxpr.frames import Frame


def iterations_after(step: Step, frame: Frame, iteration: IterationIndex) -> Sequence[IterationIndex]:
    """Returns the iterations in which a step leads to another value.

    Args:
        step: The step, which is not into a loop of no iterations.
        frame: The frame of the value that it leads from.
        iteration: The iteration of the loops around that frame.
    """
    there = step.to.frame
    if step.way in ("leave", "stack") and len(there.loops) < len(frame.loops):
        *_, last = _in_order(frame)
        return [iteration[:-1]] if step.way == "stack" or iteration[-1] == last else []
    if step.way == "again":
        order = list(_in_order(there))
        at = order.index(iteration[-1]) + 1
        return [(*iteration[:-1], order[at])] if at < len(order) else []
    if len(there.loops) == len(frame.loops):
        return [iteration]
    return [(*iteration, index) for index in _in_order(there)][: 1 if step.way == "carry" else None]


def carried_past(step: Step) -> list[FrameVariable]:
    """Returns the loop's outputs that are the value itself where the loop that a step enters has no iterations."""
    body = step.to.frame
    outputs = () if step.way != "carry" else enumerate(step.frame.jaxpr.eqns[step.number].outvars)
    following = ((variable, body.transfer.next_variable(position)) for position, variable in outputs)
    carried = (variable for variable, at in following if at is not None and body.jaxpr.invars[at] is step.to.atom)
    return [FrameVariable(step.frame, variable) for variable in carried]


def is_parallel(frame: Frame) -> bool:
    """Returns whether a frame is one whose iterations run on several devices at once."""
    return frame.transfer.loop is not None and frame.transfer.loop.parallel


def _in_order(body: Frame) -> range:
    """Returns the iterations of a scan, given its body, in the order in which they run."""
    loop = body.loops[-1]
    iterations = range(loop.length or 0)
    return iterations[::-1] if loop.reverse else iterations
