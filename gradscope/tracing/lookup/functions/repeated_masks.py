"""A random mask may be the same at every step: that of a key which the loss makes of a number, and of no argument.

A key from outside is an argument, or a constant of the trace, of which it is not known whether it is another one at the
next step. One mask for all examples may be meant to stay: it divides features, as in a coupling of a normalising flow.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import variable_of
from gradscope.tracing.lookup.functions.random_masks import random_masks
from gradscope.tracing.tracer import Trace


def repeated_masks(trace: Trace) -> tuple[str | None, ...]:
    """Returns the places of masks that no argument decides, `file:line`, each once; None where unknown.

    Args:
        trace: The trace of a loss.
    """
    drawn = (each for each in random_masks(trace) if _is_of_examples(each.site.shape))
    masks = [(each.site.value, each.mask) for each in drawn if each.mask is not None]
    if not masks:
        return ()
    root, frames = trace.root, {frame.key: frame for frame in trace.root.walk()}
    given = (*root.jaxpr.invars, *root.jaxpr.constvars)
    decided = ForwardFlow().closure(FrameVariable(root, variable) for variable in given)
    return tuple(
        dict.fromkeys(
            mask.source
            for value, mask in masks
            if FrameVariable(around := frames[value.frame], variable_of(around, value)) not in decided
        )
    )


def _is_of_examples(shape: Sequence[int]) -> bool:
    return len(shape) > 1 and shape[0] > 1
