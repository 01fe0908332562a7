"""Random numbers may be the same at every step: those of a key which the loss makes of a number, or of a fixed one.

So are they where what they are drawn by is an argument that stays the same, which only values show. One mask for all
examples may be meant to stay: it divides features, as in a coupling of a normalising flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import ValueKey, variable_of
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.lookup.functions.drawn.random_masks import random_masks
from gradscope.tracing.lookup.functions.drawn.random_noise import is_of_examples, random_noise
from gradscope.tracing.tracer import Trace

#: What random numbers do to an example: a mask drops some of it, noise is added to it or multiplies it.
DrawnFor: TypeAlias = Literal["mask", "noise"]


class Drawn(NamedTuple):
    """A `Drawn` is a mask or noise with what decides it.

    Attributes:
        what: Which of the two.
        source: The place where it is applied, `file:line`; None where unknown.
        inputs: The keys and integers that decide it, by number: the arguments of the trace, and then its constants.
        is_drawn_by_keys: Whether nothing else decides it, as no parameter does.
    """

    what: DrawnFor
    source: str | None
    inputs: tuple[int, ...]
    is_drawn_by_keys: bool


def repeated_draws(trace: Trace) -> dict[DrawnFor, tuple[str | None, ...]]:
    """Returns the places of masks, and those of noise, that no input decides, `file:line`, each once; None: unknown.

    Args:
        trace: The trace of a loss.
    """
    places: dict[DrawnFor, dict[str | None, None]] = {}
    for each in drawn(trace):
        if each.is_drawn_by_keys and not each.inputs:
            places.setdefault(each.what, {})[each.source] = None
    return {what: tuple(those) for what, those in places.items()}


def drawn(trace: Trace) -> Iterator[Drawn]:
    """Yields the random masks and the noise of values inside the model, which examples differ in.

    Args:
        trace: The trace of a loss. Constants that are the same at every call of it decide nothing.
    """
    found = list(_found(trace))
    if not found:
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
    for what, value, source in found:
        drawn_at = FrameVariable(around := frames[value.frame], variable_of(around, value))
        inputs = tuple(at for at, decided in deciding if drawn_at in decided)
        yield Drawn(what, source, inputs, drawn_at not in by_numbers)


def _found(trace: Trace) -> Iterator[tuple[DrawnFor, ValueKey, str | None]]:
    for each in random_masks(trace):
        if each.mask is not None and is_of_examples(each.site.shape):
            yield "mask", each.site.value, each.mask.source
    for noise in random_noise(trace):
        yield "noise", noise.value, noise.source


def _is_key(variable: Atom) -> bool:
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jax.dtypes.prng_key) or jnp.issubdtype(dtype, jnp.integer)
