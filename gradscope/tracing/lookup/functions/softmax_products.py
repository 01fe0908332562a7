"""Softmaxes are followed to the products of matrices that weight by their shares, over the same axis or another one.

Attention adds up over the axis along which its shares sum to 1. A softmax over the queries or the examples there is a
mistake, where what is meant is not a routing, as that of capsules or of a bag of clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest.operation_facts import SoftmaxUse
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

#: What may be between exponentials, or their sum, and the division.
_SAME: Final = frozenset({"convert_element_type", "broadcast_in_dim", "reshape", "copy", "max"})
#: Return the shares as they are, or some of them scaled or as zeros, as a dropout does.
_KEEPS: Final = frozenset({"convert_element_type", "copy", "select_n", "mul", "div"})
#: A sequence has more positions.
_FEWEST: Final = 2
#: The most values that are looked at behind one softmax.
_NEAR: Final = 50


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A `WeightedSum` is a product of matrices that weights by the shares of a softmax.

    Attributes:
        site: The shares.
        over: The axes over which they sum to 1.
        summed: The axes over which the product adds up.
        queries: The other axis of the shares that is as long as the one that is summed, where there is only one: heads
            that share their keys, as in grouped attention, are an axis of their own.
    """

    site: Site
    over: tuple[int, ...]
    summed: tuple[int, ...]
    queries: int | None

    @property
    def crosses(self) -> bool:
        """Whether it adds up over other axes than those of the softmax."""
        return not set(self.over) & set(self.summed)


def weighted_sums(trace: Trace) -> list[WeightedSum]:
    """Returns the products that weight by the shares of a softmax, in program order.

    Args:
        trace: The trace.
    """
    return list(_Search(trace).found())


def softmax_uses(trace: Trace) -> Iterator[SoftmaxUse]:
    """Yields the softmaxes whose shares weight along other axes than their own, each line once, in program order.

    One whose shares another product sums along its own axis is none. Where a loss has gradients in it, as of forces or
    of an inner step, the other products are those of the backward pass, which adds up over the queries.

    Args:
        trace: The trace.
    """
    found = weighted_sums(trace)
    right = {_softmax(each) for each in found if not each.crosses}
    yield from dict.fromkeys(
        SoftmaxUse(shape=each.site.shape, over=each.over, summed=each.summed, source=each.site.source)
        for each in found
        if _softmax(each) not in right
    )


def _softmax(product: WeightedSum) -> tuple[str | None, tuple[int, ...], tuple[int, ...]]:
    """Returns the line, the shape and the axes of a softmax: a rematerialised one has the same."""
    return product.site.source, product.site.shape, product.over


def attentions(trace: Trace) -> Iterator[BoundedFunction]:
    """Yields the softmaxes between the positions of one sequence, of which it is observed which positions are read.

    Args:
        trace: The trace.
    """
    for each in weighted_sums(trace):
        if each.queries is not None and len(each.summed) == 1 and not each.crosses:
            positions = (each.queries, each.summed[0])
            yield BoundedFunction(
                function="attention", site=each.site, entries=1, layer=None, inputs=tuple, positions=positions
            )


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()

    def found(self) -> Iterator[WeightedSum]:
        """Yields them in program order."""
        divisions = [
            (frame, number, axes)
            for frame in self._frames.values()
            for number, equation in enumerate(frame.jaxpr.eqns)
            if equation.primitive.name == "div" and (axes := self._axes(frame, equation))
        ]
        values = ModelValues(self._trace, self._flow)
        for frame, number, axes in divisions:
            result = frame.jaxpr.eqns[number].outvars[0]
            variable = FrameVariable(frame, result)
            if not values.are_learned(variable):
                continue
            site = self._trace.site_at(made_at(frame, number, 0))
            for summed, free in self._summed(variable):
                length = site.shape[summed[0]] if len(summed) == 1 else 0
                alike = [axis for axis in free if site.shape[axis] == length > _FEWEST]
                yield WeightedSum(site, axes, summed, alike[0] if len(alike) == 1 else None)

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
        return tuple(map(int, total.params["axes"])) if same else ()  # those of NumPy where it is mapped

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

    def _summed(self, start: FrameVariable) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yields the axes of the shares over which each product sums that weights by them, and those that it keeps.

        They are counted as those of the softmax. An axis along which two operands are multiplied is neither.
        """
        # A variable, and for each of its axes that of the softmax.
        waiting = [(start, tuple(range(len(start.atom.aval.shape))))]
        seen = {start}
        while waiting and len(seen) < _NEAR:
            variable, axes = waiting.pop()
            for step in self._flow.steps(variable):
                contracted, batched = _dimensions(step, variable)
                if contracted:
                    free = set(range(len(axes))) - set(contracted) - set(batched)
                    yield tuple(sorted(axes[each] for each in contracted)), tuple(sorted(axes[each] for each in free))
                elif step.to not in seen and (moved := _moved(step, variable, axes)) is not None:
                    seen.add(step.to)
                    waiting.append((step.to, moved))


def _dimensions(step: Step, variable: FrameVariable) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axes of an operand over which a product of matrices sums, and those that it has in common.

    Both are empty where a step is no such product.
    """
    equation = step.frame.jaxpr.eqns[step.number]
    if step.way != "compute" or equation.primitive.name != "dot_general":
        return (), ()
    one, two = equation.invars
    if one is two:
        return (), ()
    contracting, batch = equation.params["dimension_numbers"]
    side = 0 if one is variable.atom else 1
    return tuple(map(int, contracting[side])), tuple(map(int, batch[side]))


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
