"""A random mask may be the same at every step: that of a key which the loss makes of a number, or of a fixed one.

So it is where what it is drawn by is an argument that stays the same, which only values show. One mask for all examples
may be meant to stay: it divides features, as in a coupling of a normalising flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import variable_of
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.lookup.functions.random_masks import random_masks
from gradscope.tracing.tracer import Trace


class DrawnMask(NamedTuple):
    """A `DrawnMask` is a mask with what decides it.

    Attributes:
        source: Its place, `file:line`; None where unknown.
        inputs: The keys and integers that decide it, by number: the arguments of the trace, and then its constants.
        is_drawn_by_keys: Whether nothing else decides it, as no parameter does.
    """

    source: str | None
    inputs: tuple[int, ...]
    is_drawn_by_keys: bool


def repeated_masks(trace: Trace) -> tuple[str | None, ...]:
    """Returns the places of masks that no input decides, `file:line`, each once; None where unknown.

    Args:
        trace: The trace of a loss.
    """
    masks = drawn_masks(trace)
    return tuple(dict.fromkeys(each.source for each in masks if each.is_drawn_by_keys and not each.inputs))


def drawn_masks(trace: Trace) -> Iterator[DrawnMask]:
    """Yields the random masks of values inside the model, which examples differ in.

    Args:
        trace: The trace of a loss. Constants that are the same at every call of it decide nothing.
    """
    drawn = (each for each in random_masks(trace) if _is_of_examples(each.site.shape))
    masks = [(each.site.value, each.mask) for each in drawn if each.mask is not None]
    if not masks:
        return
    root, frames, flow = trace.root, {frame.key: frame for frame in trace.root.walk()}, ForwardFlow()
    arguments = list(enumerate(root.jaxpr.invars))
    constants = [
        (len(arguments) + at, variable)
        for at, variable in enumerate(root.jaxpr.constvars)
        if trace.computed_constants is None or at in trace.computed_constants
    ]
    params = {at for at, leaf in enumerate(trace.arguments) if leaf.family == naming.PARAM}
    keys = [each for each in (*arguments, *constants) if each[0] not in params and _is_key(each[1])]
    numbers = [variable for at, variable in (*arguments, *constants) if at in params or not _is_key(variable)]
    deciding = [(at, flow.closure([FrameVariable(root, variable)])) for at, variable in keys]
    by_numbers = flow.closure(FrameVariable(root, variable) for variable in numbers)
    for value, mask in masks:
        drawn_at = FrameVariable(around := frames[value.frame], variable_of(around, value))
        inputs = tuple(at for at, decided in deciding if drawn_at in decided)
        yield DrawnMask(mask.source, inputs, drawn_at not in by_numbers)


def _is_key(variable: Atom) -> bool:
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jax.dtypes.prng_key) or jnp.issubdtype(dtype, jnp.integer)


def _is_of_examples(shape: Sequence[int]) -> bool:
    return len(shape) > 1 and shape[0] > 1
