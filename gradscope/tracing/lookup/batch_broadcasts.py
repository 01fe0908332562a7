"""A broadcast in a loss may pair every example with every other: a column [n, 1] meets a row [n].

A model with one output returns a column of predictions, labels often come as a row, and their difference is a matrix
of all pairs. It runs, its mean falls to the labels' variance, and nothing is learnt but their mean.

Losses of pairs exist, and are written on purpose with an axis that the program adds: `x[:, None] - y[None, :]`. So it
counts only where the column has its last axis by itself, the row got its first one from the broadcast, one of them is
an array of the batch, or a target that is made of one element by element and gets no gradient, and the other is made of
parameters and of the batch, and the pairs are only summed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.operation_facts.batch_broadcast import BatchBroadcast
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS
from gradscope.tracing.dataflow.constants_before_rules import passes_tangents
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.jaxpr.source_lines import source_of
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.tracer import Trace

_COMBINE: Final = ADDITIONS | MULTIPLICATIONS | {"max", "min", "pow", "atan2"}
_REDUCE: Final = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


def batch_broadcasts(trace: Trace) -> tuple[BatchBroadcast, ...]:
    """Returns the broadcasts that pair every example with every other, one for each array of the batch."""
    found: dict[str, BatchBroadcast] = {}
    for each in _Search(trace).found():
        found.setdefault(each.input, each)
    return tuple(found.values())


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()

    def found(self) -> Iterator[BatchBroadcast]:
        """Yields the broadcasts in program order."""
        for frame in self._frames.values():
            if frame.opaque or frame.bypassed:
                continue
            live = self._trace.liveness.live(frame)
            for number, equation in enumerate(frame.jaxpr.eqns):
                if number in live and (size := _paired(equation)) and (one := self._at(frame, number, size)):
                    yield one

    def _at(self, frame: Frame, number: int, size: int) -> BatchBroadcast | None:
        equation = frame.jaxpr.eqns[number]
        column, row = sorted(equation.invars, key=lambda atom: atom.aval.shape[1])
        if self._is_added_axis(frame, column, size) or not self._is_added_axis(frame, row, size):
            return None
        for data, made in ((row, column), (column, row)):
            leaf = self._leaf(frame, data, size) or self._leaf_of_target(frame, data, size)
            if leaf is not None and self._is_predicted(frame, made) and self._is_only_summed(frame, equation):
                return BatchBroadcast(
                    input=leaf.name, size=size, column=data is column, primitive=equation.primitive.name,
                    source=source_of(equation),
                )  # fmt: skip
        return None

    def _is_added_axis(self, frame: Frame, atom: Atom, size: int) -> bool:
        """Returns whether the program itself made a column or a row of a vector."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            around = self._frames[value.frame]
            equation = around.jaxpr.eqns[value.equation]
            read = _only_operand(equation, size)
            if read is None:
                return False
            if len(read.aval.shape) == 1:
                return equation.primitive.name in COPIES
            value = resolve(around, read)
        return False

    def _leaf(self, frame: Frame, atom: Atom, size: int) -> Leaf | None:
        """Returns the array of the batch of which a value is made, element by element; None where it is none."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            around = self._frames[value.frame]
            read = _only_operand(around.jaxpr.eqns[value.equation], size)
            value = None if read is None else resolve(around, read)
        return None if value is None else self._batch.get(value)

    def _leaf_of_target(self, frame: Frame, atom: Atom, size: int) -> Leaf | None:
        """Returns an array of the batch in a value that reaches no parameter, such as the rewards in a target."""
        if FrameVariable(frame, atom) in self._learning:
            return None
        waiting = [resolve(frame, atom)]
        seen = set(waiting)
        while waiting:
            value = waiting.pop(0)
            if value is None or value in self._batch:
                return None if value is None else self._batch[value]
            around = self._frames[value.frame]
            read = [] if value.equation == OPERAND else _own_elements(around.jaxpr.eqns[value.equation], size)
            fresh = [made for each in read if (made := resolve(around, each)) not in seen]
            waiting += fresh
            seen.update(fresh)
        return None

    @cached_property
    def _learning(self) -> Collection[FrameVariable]:
        """The values through which a gradient reaches parameters."""
        return self._flow.closure(self._leaves(naming.PARAM), passes_tangents)

    @cached_property
    def _batch(self) -> Mapping[ValueKey, Leaf]:
        root = self._trace.root
        arguments = zip(root.jaxpr.invars, self._trace.arguments, strict=True)
        of_batch = ((resolve(root, variable), leaf) for variable, leaf in arguments if leaf.family == naming.INPUT)
        return {value: leaf for value, leaf in of_batch if value is not None}

    def _is_predicted(self, frame: Frame, atom: Atom) -> bool:
        """Returns whether a value is made of parameters and of the batch."""
        variable = FrameVariable(frame, atom)
        return all(variable in self._flow.closure(self._leaves(family)) for family in (naming.PARAM, naming.INPUT))

    def _leaves(self, family: str) -> Iterator[FrameVariable]:
        root = self._trace.root
        arguments = zip(root.jaxpr.invars, self._trace.arguments, strict=True)
        return (FrameVariable(root, variable) for variable, leaf in arguments if leaf.family == family)

    def _is_only_summed(self, frame: Frame, equation: Equation) -> bool:
        """Returns whether the loss reads the pairs element by element, until they are reduced."""
        waiting = [FrameVariable(frame, equation.outvars[0])]
        seen = set(waiting)
        while waiting:
            for step in self._flow.steps(waiting.pop()):
                if step.to in seen or step.number not in self._trace.liveness.live(step.frame):
                    continue
                seen.add(step.to)
                if step.to.atom.aval.shape == equation.outvars[0].aval.shape:
                    waiting.append(step.to)
                elif step.frame.jaxpr.eqns[step.number].primitive.name not in _REDUCE:
                    return False
        return True


def _paired(equation: Equation) -> int:
    """Returns the length of the column and of the row that an equation combines; 0 for any other equation."""
    if equation.primitive.name not in _COMBINE or len(equation.invars) != 2 or not is_inexact(equation.outvars[0]):
        return 0
    shapes = sorted(atom.aval.shape for atom in equation.invars)
    size = equation.outvars[0].aval.shape[:1]
    return size[0] if size and size[0] > 1 and shapes == [(1, *size), (*size, 1)] else 0


def _own_elements(equation: Equation, size: int) -> list[Atom]:
    """Returns the operands that have so many elements, where all others have one."""
    counts = [math.prod(atom.aval.shape) for atom in equation.invars]
    if not all(count in (1, size) for count in counts):
        return []
    return [atom for atom, count in zip(equation.invars, counts, strict=True) if count == size and not is_literal(atom)]


def _only_operand(equation: Equation, size: int) -> Atom | None:
    """Returns the one operand that has so many elements, where all others have one; None where there is none."""
    operands = [atom for atom in equation.invars if not is_literal(atom) and math.prod(atom.aval.shape) != 1]
    return operands[0] if len(operands) == 1 and math.prod(operands[0].aval.shape) == size else None
