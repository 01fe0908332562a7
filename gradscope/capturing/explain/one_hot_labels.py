"""Labels that begin at 1 have no class for the last one: `one_hot` makes zeros of it, without an error.

So it does of a label that stands for none, as 255 in segmentation. Labels that begin at 1 are told by what there is:
some are the number of the classes, and none is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gradscope.capturing.explain.known_integers import KnownIntegers
from gradscope.dump.manifest.operation_facts.out_of_bounds import OutOfBounds
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import Frame, made_at
from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

#: Compare predictions with labels.
_COMPARES: Final = frozenset({"mul", "dot_general", "sub"})


class ComparedLabels(NamedTuple):
    """`ComparedLabels` are compared with all classes, which makes a row of each.

    Attributes:
        input: The name of the array of the batch that they are made of.
        labels: They themselves, those once that are spread along axes.
        classes: How many classes there are.
        source: `file:line` in the user's code; None where unknown.
    """

    input: str
    labels: np.ndarray
    classes: int
    source: str | None


def labels_from_one(trace: Trace, leaves: Sequence[Any]) -> Iterator[OutOfBounds]:
    """Yields the labels of a batch that begin at 1 where classes begin at 0, by the comparisons that make rows of them.

    Args:
        trace: The loss.
        leaves: Its flat arguments; None for those that are not known.
    """
    for found in compared_labels(trace, leaves):
        labels, classes = found.labels, found.classes
        if labels.min() >= 1 and labels.max() == classes:
            yield OutOfBounds(
                looked_up="classes", input=found.input, rows=classes, index=classes,
                beyond=int((labels == classes).sum()), indices=labels.size, source=found.source,
            )  # fmt: skip


def compared_labels(trace: Trace, leaves: Sequence[Any]) -> Iterator[ComparedLabels]:
    """Yields the labels of a batch of which comparisons make the rows that predictions are compared with.

    Args:
        trace: The loss.
        leaves: Its flat arguments; None for those that are not known.
    """
    search = _Search(trace, leaves)
    for frame in trace.root.walk():
        if frame.opaque or frame.bypassed or frame.loops:
            continue
        live = trace.liveness.live(frame)
        for number, equation in enumerate(frame.jaxpr.eqns):
            if number in live and equation.primitive.name == "eq":
                yield from search.at(frame, number)


class _Search:
    def __init__(self, trace: Trace, leaves: Sequence[Any]) -> None:
        self._trace, self._flow = trace, ForwardFlow()
        self._values = ModelValues(trace, self._flow)
        self._integers = KnownIntegers(trace, leaves)

    def at(self, frame: Frame, number: int) -> Iterator[ComparedLabels]:
        """Yields the labels that an equation compares with all classes."""
        equation = frame.jaxpr.eqns[number]
        for labels, counted in (equation.invars, equation.invars[::-1]):
            inputs = self._integers.inputs_behind(frame, labels)
            if len(inputs) != 1 or self._integers.inputs_behind(frame, counted):
                continue
            known, classes = (self._integers.value(frame, each) for each in (labels, counted))
            if known is None or not known.size or classes is None or (rows := _classes(classes)) < 2:
                continue
            if self._are_compared(frame, equation):
                source = self._trace.site_at(made_at(frame, number, 0)).source
                yield ComparedLabels(inputs[0].name, _distinct(known), rows, source)

    def _are_compared(self, frame: Frame, equation: Equation) -> bool:
        """Returns whether predictions, through which gradients pass, are compared with the rows of the labels."""
        # What is made of labels alone, as smooth ones, up to where predictions come to it.
        rows = self._flow.closure([FrameVariable(frame, equation.outvars[0])], lambda step: not self._meets(step))
        return any(
            self._meets(step) and step.frame.jaxpr.eqns[step.number].primitive.name in _COMPARES
            for variable in rows
            for step in self._flow.steps(variable)
        )

    def _meets(self, step: Step) -> bool:
        return self._values.are_learned(step.to)


def _classes(counted: np.ndarray) -> int:
    """Returns how many numbers an array counts from 0 on, along one axis; 0 for another array."""
    line = _distinct(counted)
    return line.size if line.size == max(line.shape, default=0) and (line.ravel() == np.arange(line.size)).all() else 0


def _distinct(array: np.ndarray) -> np.ndarray:
    """Returns an array without the axes along which it repeats one element in memory."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
