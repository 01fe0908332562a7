"""The softmax of a loss may be over the examples, so that a class is shared out among them and no class is chosen.

Found is a logarithm of a softmax over the examples, or of what is picked of it for each, of scores [examples, classes]
that parameters make of the batch and no weights read further on, as they read what attention pools. Scores of pairs of
examples, as of a contrastive loss, have examples along both axes; those of a listwise ranking are one of each example.
A logarithm of a sum of exponentials that is not subtracted from the scores pools them, as those of the instances of a
bag.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, starmap
from typing import Final

from gradscope.dump.manifest.operation_facts import SoftmaxUse
from gradscope.primitive_groups import COPIES, SLICES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes
from gradscope.tracing.tracer import Trace

#: What may be between the logarithm of a sum and its subtraction: a shape, and the largest score, which is added again.
_ADDED_AGAIN: Final = COPIES | {"add"}
#: What may be between the shares that are picked and their logarithm: a shape, all rows, and what keeps it from 0.
_GUARDS: Final = COPIES | SLICES | {"add", "max", "clamp", "select_n"}


def classes_over_examples(trace: Trace) -> Iterator[SoftmaxUse]:
    """Yields the softmaxes of a loss that are over the examples, in program order.

    Args:
        trace: The trace of a loss.
    """
    flow = ForwardFlow()
    axes, values = SoftmaxAxes(trace), ModelValues(trace, flow)
    frames = {frame.key: frame for frame in trace.root.walk()}
    for frame in frames.values():
        for number, equation in enumerate(() if frame.opaque or frame.bypassed else frame.jaxpr.eqns):
            if equation.primitive.name != "log":
                continue
            result, picks = FrameVariable(frame, equation.outvars[0]), _picked(frames, frame, equation)
            read = [(frame, number), *((around, made) for around, made, _ in picks)]
            tables = chain.from_iterable(axes.tables_over_examples(*each) for each in read)
            for logits in starmap(FrameVariable, tables):
                is_made = logits in values.of_batch and all(map(values.are_learned, (logits, result)))
                if not is_made or values.lead_to_weights(logits):
                    continue
                shape = logits.atom.aval.shape
                if _is_of_softmax(flow, result, logits) or any(table == shape for *_, table in picks):
                    source = trace.site_at(made_at(frame, number, 0)).source
                    yield SoftmaxUse(shape=shape, over=(0,), summed=(), source=source)
                    break  # the largest score and the sum are of one softmax


def _picked(
    frames: Mapping[FrameKey, Frame], frame: Frame, equation: Equation
) -> list[tuple[Frame, int, tuple[int, ...]]]:
    """Returns what makes the tables of which an equation reads a picked element of each row, and their shapes."""
    found: list[tuple[Frame, int, tuple[int, ...]]] = []
    waiting = [resolve(frame, each) for each in equation.invars]
    while waiting:
        value = waiting.pop()
        if value is None or value.equation == OPERAND:
            continue
        maker = frames[value.frame]
        made = maker.jaxpr.eqns[value.equation]
        if not _picks(made):
            waiting += (resolve(maker, each) for each in made.invars if made.primitive.name in _GUARDS)
        elif (table := resolve(maker, made.invars[0])) is not None and table.equation != OPERAND:
            found.append((frames[table.frame], table.equation, made.invars[0].aval.shape))
    return found


def _picks(equation: Equation) -> bool:
    """Returns whether an equation picks one element of each row of a table, or adds up those of a row."""
    is_row_sum = equation.primitive.name == "reduce_sum" and equation.params["axes"] == (1,)
    shape, table = equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    return (
        (is_row_sum or equation.primitive.name == "gather")
        and len(table) == 2
        and bool(shape)
        and math.prod(shape) == table[0] == shape[0]
    )


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
