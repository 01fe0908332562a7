"""Softmaxes are followed to the products of matrices that weight by their shares, over the same axis or another one.

Attention adds up over the axis along which its shares sum to 1. A softmax over the queries or the examples there is a
mistake, where what is meant is not a routing, as that of capsules or of a bag of clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.operation_facts import SoftmaxAxes
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.tracer import Trace

#: What may be between exponentials, or their sum, and the division.
_SAME: Final = frozenset({"convert_element_type", "broadcast_in_dim", "reshape", "copy", "max"})
#: Return the shares as they are, or some of them scaled or as zeros, as a dropout does.
_KEEPS: Final = frozenset({"convert_element_type", "copy", "select_n", "mul", "div"})
#: The most values that are looked at behind one softmax.
_NEAR: Final = 50


def softmax_axes(trace: Trace) -> tuple[SoftmaxAxes, ...]:
    """Returns the softmaxes whose shares weight along other axes than their own, each line once, in program order.

    Args:
        trace: The trace.
    """
    return tuple(dict.fromkeys(_Search(trace).found()))


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()

    def found(self) -> Iterator[SoftmaxAxes]:
        """Yields them in program order."""
        divisions = [
            (frame, number, axes)
            for frame in self._frames.values()
            for number, equation in enumerate(frame.jaxpr.eqns)
            if equation.primitive.name == "div" and (axes := self._axes(frame, equation))
        ]
        of_params = self._of_params() if divisions else {}
        for frame, number, axes in divisions:
            result = frame.jaxpr.eqns[number].outvars[0]
            variable = FrameVariable(frame, result)
            if variable not in of_params or self._trace.reachability.of(frame, result) is not Reach.GRADIENT:
                continue
            for summed in self._summed(variable, axes):
                site = self._trace.site_at(made_at(frame, number, 0))
                yield SoftmaxAxes(shape=tuple(result.aval.shape), over=axes, summed=summed, source=site.source)

    def _of_params(self) -> dict[FrameVariable, None]:
        root = self._trace.root
        leaves = zip(root.jaxpr.invars, self._trace.arguments, strict=True)
        return self._flow.closure(FrameVariable(root, each) for each, leaf in leaves if leaf.family == naming.PARAM)

    def _axes(self, frame: Frame, division: Equation) -> tuple[int, ...]:
        """Returns the axes of a softmax that ends with a division; none for another division."""
        above, below = (self._made_by(frame, atom) for atom in division.invars)
        if above is None or below is None:
            return ()
        around = self._frames[below.frame]
        total = around.jaxpr.eqns[below.equation]
        name = self._frames[above.frame].jaxpr.eqns[above.equation].primitive.name
        if name not in ("exp", "exp2") or total.primitive.name != "reduce_sum":
            return ()
        summed = self._made_by(around, total.invars[0])
        same = summed == above and total.invars[0].aval.shape == division.outvars[0].aval.shape
        return tuple(total.params["axes"]) if same else ()

    def _made_by(self, frame: Frame, atom: Atom) -> ValueKey | None:
        """Returns the value of which an atom is a copy, in another type or shape; None for an argument."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            maker = self._frames[value.frame]
            equation = maker.jaxpr.eqns[value.equation]
            if equation.primitive.name not in _SAME:
                return value
            value = next((found for each in equation.invars if (found := resolve(maker, each)) is not None), None)
        return None

    def _summed(self, start: FrameVariable, over: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the axes of other products, as the softmax counts them, over which its shares weight a sum."""
        # A variable, and for each of its axes that of the softmax.
        waiting = [(start, tuple(range(len(start.atom.aval.shape))))]
        seen = {start}
        while waiting and len(seen) < _NEAR:
            variable, axes = waiting.pop()
            for step in self._flow.steps(variable):
                contracted = _contracted(step, variable)
                if contracted:
                    found = tuple(axes[each] for each in contracted)
                    if not set(found) & set(over):
                        yield tuple(sorted(found))
                elif step.to not in seen and (moved := _moved(step, variable, axes)) is not None:
                    seen.add(step.to)
                    waiting.append((step.to, moved))


def _contracted(step: Step, variable: FrameVariable) -> tuple[int, ...]:
    """Returns the axes of an operand over which a product of matrices sums; none where a step is no such product."""
    equation = step.frame.jaxpr.eqns[step.number]
    if step.way != "compute" or equation.primitive.name != "dot_general":
        return ()
    one, two = equation.invars
    if one is two:
        return ()
    contracting = equation.params["dimension_numbers"][0]
    return tuple(contracting[0 if one is variable.atom else 1])


def _moved(step: Step, variable: FrameVariable, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the axes of what a step leads to; None where it is other than the shares, or has other axes."""
    if step.way in ("enter", "leave"):
        return axes
    equation = step.frame.jaxpr.eqns[step.number]
    name = equation.primitive.name
    if step.way != "compute":
        return None
    if name == "transpose":
        return tuple(axes[each] for each in equation.params["permutation"])
    rest = [each for each in equation.invars if each is not variable.atom]
    scaled = name not in ("mul", "div") or all(is_literal(each) for each in rest)
    same = equation.outvars[0].aval.shape == variable.atom.aval.shape
    return axes if name in _KEEPS and scaled and same else None
