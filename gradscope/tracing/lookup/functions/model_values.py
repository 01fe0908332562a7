"""The values inside a model pass a signal on: parameters and the batch make them, and weights read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from gradscope import naming
from gradscope.primitive_groups import RANDOM
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.products import leading_to_products
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import Frame, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.tracer import Trace


class ModelValues:
    """`ModelValues` are the values of a trace by what they are made of, and by what reads them.

    Args:
        trace: The trace.
        flow: Its steps.
    """

    def __init__(self, trace: Trace, flow: ForwardFlow) -> None:
        self._trace, self._flow = trace, flow

    @cached_property
    def of_batch(self) -> Collection[FrameVariable]:
        """The values made of the batch; of a loss that closes over some of it, or over all, of the constants, too."""
        root = self._trace.root
        inputs = list(self._given(naming.INPUT))
        constants = [FrameVariable(root, variable) for variable in root.jaxpr.constvars]
        closed_over = [constants[at] for at in self._trace.computed_constants or ()]
        return self._flow.closure([*inputs, *closed_over] or constants)

    @cached_property
    def of_params(self) -> Collection[FrameVariable]:
        """The values made of parameters."""
        return self._flow.closure(self._given(naming.PARAM))

    @cached_property
    def drawn(self) -> Collection[FrameVariable]:
        """The values made of random numbers that the program draws."""
        return self._flow.closure(
            FrameVariable(frame, out)
            for frame in self._trace.root.walk() for equation in frame.jaxpr.eqns
            if equation.primitive.name in RANDOM for out in equation.outvars
        )  # fmt: skip

    def are_learned(self, variable: FrameVariable) -> bool:
        """Returns whether parameters change a value, and the loss has a gradient with respect to it."""
        return self._trace.reachability.of(*variable) is Reach.GRADIENT and variable in self.of_params

    def lead_to_weights(self, variable: FrameVariable) -> bool:
        """Returns whether a value is made of the batch, and something of it is multiplied by weights further on."""
        return variable in self.of_batch and variable.atom in self._leading.get(variable.frame.key, ())

    def _given(self, family: str) -> Iterator[FrameVariable]:
        root = self._trace.root
        leaves = zip(root.jaxpr.invars, self._trace.arguments, strict=True)
        return (FrameVariable(root, variable) for variable, leaf in leaves if leaf.family == family)

    @cached_property
    def _leading(self) -> Mapping[FrameKey, Collection[Atom]]:
        return leading_to_products(self._trace.root, self._is_weight)

    def _is_weight(self, frame: Frame, atom: Atom) -> bool:
        variable = FrameVariable(frame, atom)
        return not is_literal(atom) and variable in self.of_params and variable not in self.of_batch
