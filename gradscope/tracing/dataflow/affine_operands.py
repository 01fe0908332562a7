"""A function is affine in an operand where its gradient does not depend on it, as that of a dual variable does not.

A dual variable, such as a Lagrange multiplier, multiplies what a constraint is violated by, and is maximised while all
other parameters are minimised over. What is made of it alone is its own, such as the `softplus` that keeps it positive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradscope.primitive_groups import ADDITIONS, COPIES, PRODUCTS, SLICES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, Reachability
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import is_literal

#: Linear in all operands together.
_LINEAR: Final = ADDITIONS | COPIES | SLICES | {"neg", "reduce_sum", "cumsum", "concatenate", "gather"}


def affine_operands(root: Frame, reachability: Reachability, positions: Iterable[int]) -> frozenset[int]:
    """Returns those operands in which, but for a function of one alone, what is differentiated is affine.

    Args:
        root: The frame of the function.
        reachability: How cotangents reach its values.
        positions: The positions of the operands in question.
    """
    flow = ForwardFlow()
    operands = [FrameVariable(root, variable) for variable in root.jaxpr.invars]
    varying = flow.closure(operands)

    def is_affine(position: int) -> bool:
        # Most operands are refused at one of their first steps, so that this is no walk of the program for each.
        mixed = {operands[position]: False}
        waiting, products = [operands[position]], list[Step]()
        while waiting:
            variable = waiting.pop()
            for step in flow.steps(variable):
                if reachability.of(*step.to) is not Reach.GRADIENT:
                    continue
                beside = mixed[variable] or any(each not in mixed for each in _read(step) if each in varying)
                if beside and step.way in ("compute", "choose"):
                    if not _is_affine(step, variable):
                        return False
                    products += [step] if _multiplies(step) else []
                if beside > mixed.get(step.to, -1):
                    mixed[step.to] = beside
                    waiting.append(step.to)
        return not any(sum(each in mixed for each in _read(step)) > 1 for step in products)

    return frozenset(filter(is_affine, positions))


def _read(step: Step) -> list[FrameVariable]:
    """Returns the values that a step computes from; none where it only leads into a frame, or out of one."""
    read = step.frame.jaxpr.eqns[step.number].invars if step.way in ("compute", "choose") else ()
    return [FrameVariable(step.frame, each) for each in read if not is_literal(each)]


def _is_affine(step: Step, variable: FrameVariable) -> bool:
    """Returns whether a step's result is affine in one value that it reads, as far as others are not made of it."""
    equation = step.frame.jaxpr.eqns[step.number]
    if step.way == "choose" or step.number in step.frame.children:
        return False
    name, first = equation.primitive.name, equation.invars[0] is variable.atom
    return name in _LINEAR or (name in PRODUCTS and (name != "div" or first)) or (name == "select_n" and not first)


def _multiplies(step: Step) -> bool:
    return step.frame.jaxpr.eqns[step.number].primitive.name in PRODUCTS
