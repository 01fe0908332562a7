"""Random numbers that are added to what is made of the batch, or multiply it, before weights are: noise.

Those of a variational autoencoder, of a diffusion model and of a router are such. Random numbers that are only compared
make a mask. A row that is broadcast to all examples is no noise of theirs, and neither are points at which a model
without a batch is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gradscope.primitive_groups import ADDITIONS, RANDOM
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

_APPLIES: Final = ADDITIONS | {"mul"}
_COMPARES: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


class RandomNoise(NamedTuple):
    """A `RandomNoise` meets a value of each example.

    Attributes:
        value: The noise.
        source: Where it meets the value, `file:line`; None where unknown.
    """

    value: ValueKey
    source: str | None


def random_noise(trace: Trace) -> Iterator[RandomNoise]:
    """Yields the noise of values that weights read further on, in program order.

    Args:
        trace: The trace.
    """
    search = _Search(trace)
    for frame in trace.root.walk():
        for number in () if frame.opaque or frame.bypassed else range(len(frame.jaxpr.eqns)):
            value = search.noise(frame, frame.jaxpr.eqns[number])
            if value is not None:
                yield RandomNoise(value, trace.site_at(made_at(frame, number, 0)).source)


def is_of_examples(shape: Sequence[int]) -> bool:
    """Returns whether what has a shape may be another one for each example."""
    return len(shape) > 1 and shape[0] > 1


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._values = ModelValues(trace, ForwardFlow())
        self._known: dict[ValueKey, bool] = {}

    def noise(self, frame: Frame, equation: Equation) -> ValueKey | None:
        """Returns the noise that an equation adds to a value of each example, or multiplies it by; None for others."""
        if equation.primitive.name not in _APPLIES or not is_of_examples(equation.outvars[0].aval.shape):
            return None
        if not self._values.lead_to_weights(FrameVariable(frame, equation.outvars[0])):
            return None
        for noise, other in (equation.invars, equation.invars[::-1]):
            value = resolve(frame, noise)
            is_met = noise.aval.shape == equation.outvars[0].aval.shape and self._is_of_batch(frame, other)
            if value is not None and is_met and self._is_noise(value) and not self._is_random(frame, other):
                return value
        return None

    def _is_of_batch(self, frame: Frame, atom: Atom) -> bool:
        return not is_literal(atom) and FrameVariable(frame, atom) in self._values.of_batch

    def _is_random(self, frame: Frame, atom: Atom) -> bool:
        value = resolve(frame, atom)
        return value is not None and self._is_noise(value)

    def _is_noise(self, value: ValueKey) -> bool:
        """Returns whether a value is random numbers alone, scaled by what is neither a parameter nor data."""
        if value not in self._known:
            self._known[value] = False  # of a value that is made of itself, as in a loop, nothing is known
            self._known[value] = value.equation != OPERAND and self._makes_noise(value)
        return self._known[value]

    def _makes_noise(self, value: ValueKey) -> bool:
        maker = self._frames[value.frame]
        equation = maker.jaxpr.eqns[value.equation]
        name = equation.primitive.name
        if name in RANDOM:
            return True
        if name in _COMPARES or (name == "broadcast_in_dim" and not _keeps_examples(equation)):
            return False
        variables = [FrameVariable(maker, each) for each in equation.invars if not is_literal(each)]
        drawn = [each for each in variables if each in self._values.drawn]
        given = [each for each in variables if each not in self._values.drawn]
        if not drawn or any(each in self._values.of_params or each in self._values.of_batch for each in given):
            return False
        return all(self._is_random(*each) for each in drawn)


def _keeps_examples(broadcast: Equation) -> bool:
    """Returns whether a broadcast has the axis of its operand that becomes the first one of its result, as it is."""
    axes, shape = broadcast.params["broadcast_dimensions"], broadcast.invars[0].aval.shape
    return bool(axes) and axes[0] == 0 and shape[0] == broadcast.outvars[0].aval.shape[0]
