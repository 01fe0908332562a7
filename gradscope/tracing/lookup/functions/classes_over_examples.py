"""The softmax of a loss may be over the examples, so that a class is shared out among them and no class is chosen.

Found is a logarithm of a softmax over the examples of which one is picked for each example, before it or behind, of
scores [examples, classes] that parameters make of the batch and no weights read further on, as they read what attention
pools. Scores of pairs of examples, as of a contrastive loss, have examples along both axes. Of a ranking, and of places
in an image, one is picked, or all are added up, for each column; what is matched is shared out along both axes.
A logarithm of a sum of exponentials that is not subtracted from the scores pools them, as those of the instances of a
bag.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, starmap
from typing import Final

from gradscope.dump.manifest.operation_facts import SoftmaxUse
from gradscope.primitive_groups import ADDITIONS, COPIES, LOGARITHMS, MULTIPLICATIONS, SLICES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, made_at, resolve, variable_of
from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes
from gradscope.tracing.tracer import Trace

#: What may be between the logarithm of a sum and its subtraction: a shape, and the largest score, which is added again.
_ADDED_AGAIN: Final = COPIES | {"add"}
#: What may be between the shares that are picked and their logarithm: a shape, all rows, and what keeps it from 0.
_GUARDS: Final = COPIES | SLICES | {"add", "max", "clamp", "select_n"}
#: What may be between the logarithms of shares and what picks of them: weights, as of a one-hot label, and a sign.
_WEIGHTS: Final = COPIES | ADDITIONS | MULTIPLICATIONS | {"neg", "select_n", "max", "clamp"}


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
            if equation.primitive.name not in LOGARITHMS:
                continue
            result, picks = FrameVariable(frame, equation.outvars[0]), _picked(frames, frame, equation)
            read = [(frame, number), *((around, made) for around, made, _ in picks)]
            found = chain.from_iterable(axes.tables_over_examples(*each) for each in read)
            tables = list(starmap(FrameVariable, found))
            if any(_shares_out_examples(frames, flow, each) for each in tables):
                continue
            for logits in tables:
                is_made = logits in values.of_batch and all(map(values.are_learned, (logits, result)))
                if not is_made or values.lead_to_weights(logits):
                    continue
                shape = logits.atom.aval.shape
                is_picked = any(table == shape for *_, table in picks) or _picks_of_each(
                    flow, _shares(flow, result, logits)
                )
                if is_picked:
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
    name = equation.primitive.name
    is_row_sum = name == "reduce_sum" and equation.params["axes"] == (1,)
    if not (is_row_sum or name == "gather"):
        return False
    shape, table = equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    return len(table) == 2 and bool(shape) and math.prod(shape) == table[0] == shape[0]


def _shares(flow: ForwardFlow, result: FrameVariable, logits: FrameVariable) -> list[FrameVariable]:
    """Returns the logarithms of shares that a logarithm is, or that a sum's is subtracted from scores for."""
    shape = logits.atom.aval.shape
    if result.atom.aval.shape == shape:
        return [result]
    return [
        step.to for variable in flow.reached([result], _adds_again) for step in flow.steps(variable)
        if _primitive(step) == "sub" and step.frame.jaxpr.eqns[step.number].invars[1] is variable.atom
        and step.to.atom.aval.shape == shape
    ]  # fmt: skip


def _picks_of_each(flow: ForwardFlow, shares: Sequence[FrameVariable]) -> bool:
    """Returns whether one element of each row is picked, or those of a row are added up, first of all."""
    shapes = {each.atom.aval.shape for each in shares}

    def goes_on(step: Step) -> bool:
        is_same = step.to.atom.aval.shape in shapes
        return is_same and (step.way in ("enter", "leave") or (step.way == "compute" and _primitive(step) in _WEIGHTS))

    return any(
        step.way == "compute" and _picks(step.frame.jaxpr.eqns[step.number])
        for variable in flow.reached(shares, goes_on) for step in flow.steps(variable)
        if variable.atom.aval.shape in shapes
    )  # fmt: skip


def _shares_out_examples(frames: Mapping[FrameKey, Frame], flow: ForwardFlow, logits: FrameVariable) -> bool:
    """Returns whether scores are shared out among the classes, too, as those that match two sets."""
    shape, logits = logits.atom.aval.shape, _before_softmax(frames, logits)
    return any(
        step.way == "compute" and _primitive(step) == "exp" and any(map(_is_sum_of_rows, flow.steps(step.to)))
        for variable in flow.reached([logits]) if variable.atom.aval.shape == shape for step in flow.steps(variable)
    )  # fmt: skip


def _before_softmax(frames: Mapping[FrameKey, Frame], table: FrameVariable) -> FrameVariable:
    """Returns the scores that exponentials are of, which may have been made less by the largest of them."""
    while (value := resolve(*table)) is not None:
        frame = frames[value.frame]
        made = None if value.equation == OPERAND else frame.jaxpr.eqns[value.equation]
        if made is None or made.primitive.name not in ("exp", "sub"):
            return FrameVariable(frame, variable_of(frame, value))
        table = FrameVariable(frame, made.invars[0])
    return table


def _is_sum_of_rows(step: Step) -> bool:
    return _primitive(step) == "reduce_sum" and step.frame.jaxpr.eqns[step.number].params["axes"] == (1,)


def _adds_again(step: Step) -> bool:
    return step.way in ("enter", "leave") or (step.way == "compute" and _primitive(step) in _ADDED_AGAIN)


def _primitive(step: Step) -> str:
    return step.frame.jaxpr.eqns[step.number].primitive.name
