"""`costs_of` returns the floating-point operations of each layer, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gradscope import naming
from gradscope.inspection.flops import flops_of
from gradscope.inspection.frame_flops import counted_frames, iterations_of
from gradscope.inspection.pullback import Pullbacks
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, is_constant, is_inexact
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Equation, is_literal
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost stores the cost of some equations.

    Attributes:
        operations: Number of equations that run no others, each counted as often as it runs.
        flops: Their floating-point operations.
        backward_flops: The floating-point operations of their backward pass to the parameters, including what a
            checkpoint (`jax.checkpoint`) computes again.
    """

    operations: int = 0
    flops: int = 0
    backward_flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            operations=self.operations + other.operations,
            flops=self.flops + other.flops,
            backward_flops=self.backward_flops + other.backward_flops,
        )


#: The cost of each layer without the layers inside it; None is the key of equations outside of all layers.
Costs: TypeAlias = Mapping[LayerCall | None, Cost]


def costs_of(trace: Trace) -> Costs:
    """Returns the cost of each layer of a traced loss without the layers inside it."""
    found: dict[LayerCall | None, Cost] = {}
    walk = _Walk(trace)
    for layer, cost in walk.costs(trace.root, None, 1, 0):
        found[layer] = found.get(layer, Cost()) + cost
    return found


class _Walk:
    """_Walk computes costs in one walk over a trace's frames.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        self._pullbacks = Pullbacks()
        self._liveness = trace.liveness
        self._reachability = trace.reachability
        self._active = _active(trace)
        self._owners = {
            (layer.frame.key, number): layer for layer in _outermost_first(trace.layers) for number in layer.equations
        }

    def costs(
        self, frame: Frame, around: LayerCall | None, times: int, remats: int
    ) -> Iterator[tuple[LayerCall | None, Cost]]:
        """Yields the cost of each equation with the innermost layer around it.

        Args:
            frame: The frame.
            around: The innermost layer around the frame.
            times: How often the frame runs.
            remats: The number of checkpoints around the frame, each of which runs it once more.
        """
        for number in sorted(self._liveness.used(frame)):
            equation = frame.jaxpr.eqns[number]
            owner = self._owners.get((frame.key, number), around)
            inside = counted_frames(frame, number, self._liveness)
            if not inside:
                yield owner, self._cost(frame, equation, times, remats)
            elif inside[0].transfer.opaque:
                yield owner, self._opaque(frame, equation, inside, times, remats)
            else:
                if inside[0].transfer.gradients == "around":
                    yield owner, Cost(backward_flops=self._back(frame, equation, 0, times, remats))
                for child in inside:
                    deeper = remats + child.transfer.recomputed
                    yield from self.costs(child, owner, times * iterations_of(child), deeper)

    def _cost(self, frame: Frame, equation: Equation, times: int, remats: int) -> Cost:
        forward = flops_of(equation)
        return Cost(
            operations=times, flops=forward * times, backward_flops=self._back(frame, equation, forward, times, remats)
        )

    def _opaque(self, frame: Frame, equation: Equation, inside: Sequence[Frame], times: int, remats: int) -> Cost:
        """Returns the cost of an equation that is not traced into: a custom rule, which has its own backward pass."""
        forward = sum(
            sum(cost.flops for _, cost in self.costs(child, None, iterations_of(child), 0)) for child in inside
        )
        return Cost(
            operations=times, flops=forward * times, backward_flops=self._back(frame, equation, forward, times, remats)
        )

    def _back(self, frame: Frame, equation: Equation, forward: int, times: int, remats: int) -> int:
        if not any(self._reachability.of(frame, variable) is Reach.GRADIENT for variable in equation.outvars):
            return 0
        active = [
            not is_literal(atom) and FrameVariable(frame, atom) in self._active and is_inexact(atom)
            for atom in equation.invars
        ]
        if not any(active) or is_constant(equation):
            return 0
        return times * (forward * remats + self._pullbacks.flops_of(equation, active, frame))


def _outermost_first(layers: tuple[LayerCall, ...]) -> list[LayerCall]:
    return sorted(layers, key=lambda layer: layer.depth)


def _active(trace: Trace) -> Mapping[FrameVariable, None]:
    """Returns the values through which the loss depends differentiably on a parameter."""
    arguments = zip(trace.arguments, trace.root.jaxpr.invars, strict=True)
    parameters = [variable for leaf, variable in arguments if leaf.family == naming.PARAM and leaf.differentiated]
    return ForwardFlow().closure((FrameVariable(trace.root, variable) for variable in parameters), _is_smooth)


def _is_smooth(step: Step) -> bool:
    renamed = step.way not in ("compute", "choose") and not step.to.frame.bypassed
    return is_inexact(step.to.atom) and (renamed or not is_constant(step.frame.jaxpr.eqns[step.number]))
