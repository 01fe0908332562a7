"""Stopped operands are those that a function with a rule reads through `stop_gradient` alone.

A rule that JAX makes of a function's own derivative, as that of a root by the implicit function theorem, returns zeros
for them, and is right: the function says that they are constant.
"""

from __future__ import annotations

from typing import Final

from gradscope.tracing.dataflow.reachability import Reach, is_inexact, reachability_from
from gradscope.tracing.jaxpr.frames import frame_tree, resolve
from gradscope.tracing.jaxpr.jaxcompat import Equation, is_literal, sub_jaxprs

#: The primitive that keeps a value constant.
STOP: Final = "stop_gradient"


def stopped_operands(equation: Equation) -> frozenset[int]:
    """Returns the positions of the operands that a function reads through `stop_gradient` alone.

    Args:
        equation: The call of a function with a rule.
    """
    body = next((each.jaxpr for each in sub_jaxprs(equation)), None)
    if body is None or len(body.invars) != len(equation.invars):
        return frozenset()
    root = frame_tree(body)
    if not any(each.primitive.name == STOP for frame in root.walk() for each in frame.jaxpr.eqns):
        return frozenset()
    outputs = [value for atom in body.outvars if not is_literal(atom) and (value := resolve(root, atom)) is not None]
    reached = reachability_from(root, outputs).arguments
    read = {id(atom) for each in body.eqns for atom in each.invars}
    # What a rule closes over is an operand for each of the functions inside, and most of them read their own alone.
    positions: dict[object, list[int]] = {}
    for at, atom in enumerate(equation.invars):
        if is_inexact(atom):
            positions.setdefault(at if is_literal(atom) else atom, []).append(at)
    stopped = (
        each
        for each in positions.values()
        if all(reached[at] is Reach.NOTHING for at in each) and any(id(body.invars[at]) in read for at in each)
    )
    return frozenset(at for each in stopped for at in each)
