"""The softmax of a loss may be over the examples, so that a class is shared out among them and no class is chosen.

Found is a logarithm of a softmax over the examples, of scores [examples, classes] that parameters make of the batch and
no weights read further on, as they read what attention pools. Scores of pairs of examples, as of a contrastive loss,
have examples along both axes; those of a listwise ranking are one of each example. A logarithm of a sum of exponentials
that is not subtracted from the scores pools them, as those of the instances of a bag.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import Final, NamedTuple

from gradscope.primitive_groups import COPIES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import made_at
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes, SoftmaxAxis
from gradscope.tracing.tracer import Trace

#: What may be between the logarithm of a sum and its subtraction: a shape, and the largest score, which is added again.
_ADDED_AGAIN: Final = COPIES | {"add"}


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
    flow = ForwardFlow()
    axes, values = SoftmaxAxes(trace), ModelValues(trace, flow)
    for frame in trace.root.walk():
        for number, equation in enumerate(() if frame.opaque or frame.bypassed else frame.jaxpr.eqns):
            if equation.primitive.name != "log":
                continue
            result = FrameVariable(frame, equation.outvars[0])
            for logits in starmap(FrameVariable, axes.tables_over_examples(frame, number)):
                is_made = logits in values.of_batch and all(map(values.are_learned, (logits, result)))
                if is_made and not values.lead_to_weights(logits) and _is_of_softmax(flow, result, logits):
                    source = trace.site_at(made_at(frame, number, 0)).source
                    yield ClassesOverExamples(SoftmaxAxis(0, logits.atom.aval.shape), source)
                    break  # the largest score and the sum are of one softmax


def _is_of_softmax(flow: ForwardFlow, result: FrameVariable, logits: FrameVariable) -> bool:
    """Returns whether a logarithm is one of shares, or of a sum that is subtracted from scores."""
    shape = logits.atom.aval.shape
    return result.atom.aval.shape == shape or any(
        _primitive(step) == "sub" and step.frame.jaxpr.eqns[step.number].invars[1] is variable.atom
        and step.to.atom.aval.shape == shape
        for variable in flow.reached([result], _adds_again) for step in flow.steps(variable)
    )  # fmt: skip


def _adds_again(step: Step) -> bool:
    return step.way in ("enter", "leave") or (step.way == "compute" and _primitive(step) in _ADDED_AGAIN)


def _primitive(step: Step) -> str:
    return step.frame.jaxpr.eqns[step.number].primitive.name
