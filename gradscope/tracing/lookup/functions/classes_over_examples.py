"""The softmax of a loss may be over the examples, so that a class is shared out among them and no class is chosen.

Found is a logarithm of a sum of exponentials over the examples, of scores [examples, classes] that parameters make of
the batch and no weights read further on. Scores of pairs of examples, as of a contrastive loss, have examples along
both axes; those of a listwise ranking are one of each example.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import NamedTuple

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import made_at
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes, SoftmaxAxis
from gradscope.tracing.tracer import Trace


class ClassesOverExamples(NamedTuple):
    """`ClassesOverExamples` is the softmax of a loss that is over the examples.

    Attributes:
        over: The axis.
        source: `file:line` in the user's code; None where unknown.
    """

    over: SoftmaxAxis
    source: str | None

    @property
    def sentence(self) -> str:
        """What is unusual."""
        place = "" if self.source is None else f" at {self.source}"
        return (
            f"the softmax{place} is {self.over}: it shares out each class among the examples, and not each example "
            "among the classes"
        )


def classes_over_examples(trace: Trace) -> Iterator[ClassesOverExamples]:
    """Yields the softmaxes of a loss that are over the examples, in program order.

    Args:
        trace: The trace of a loss.
    """
    axes, values = SoftmaxAxes(trace), ModelValues(trace, ForwardFlow())
    for frame in trace.root.walk():
        for number, equation in enumerate(() if frame.opaque or frame.bypassed else frame.jaxpr.eqns):
            if equation.primitive.name != "log":
                continue
            result = FrameVariable(frame, equation.outvars[0])
            for logits in starmap(FrameVariable, axes.tables_over_examples(frame, number)):
                is_made = values.are_learned(logits) and logits in values.of_batch
                if is_made and values.are_learned(result) and not values.lead_to_weights(result):
                    source = trace.site_at(made_at(frame, number, 0)).source
                    yield ClassesOverExamples(SoftmaxAxis(0, logits.atom.aval.shape), source)
