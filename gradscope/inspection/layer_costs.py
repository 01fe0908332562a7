"""What every layer costs, forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gradscope import naming
from gradscope.inspection.flops import flops_of
from gradscope.inspection.frame_flops import counted_frames, turns_of
from gradscope.inspection.pullback import Pullbacks
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, is_constant, is_inexact
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Equation, is_literal
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What some equations cost.

    Attributes:
        operations: Equations that run no others, each as often as it runs.
        flops: Their floating-point operations.
        backward_flops: Those that take the gradient of the loss through them to the parameters, what a checkpoint
            computes again included.
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


#: What the equations of each layer cost that belong to no layer inside it; None has what belongs to none.
Costs: TypeAlias = Mapping[LayerCall | None, Cost]


def costs_of(trace: Trace) -> Costs:
    """What each layer of a traced loss costs without the layers inside it."""
    found: dict[LayerCall | None, Cost] = {}
    walk = _Walk(trace)
    for layer, cost in walk.costs(trace.root, None, 1, 0):
        found[layer] = found.get(layer, Cost()) + cost
    return found


class _Walk:
    """One walk over a trace's frames.

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
        """Cost by cost, with the innermost layer that bears it.

        Args:
            frame: The frame.
            around: The innermost layer that the frame as a whole lies in.
            times: How often the frame runs.
            remats: How many checkpoints lie around it, each of which runs it once more.
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
                for child in inside:
                    deeper = remats + child.transfer.recomputed
                    yield from self.costs(child, owner, times * turns_of(child), deeper)

    def _cost(self, frame: Frame, equation: Equation, times: int, remats: int) -> Cost:
        forward = flops_of(equation)
        return Cost(
            operations=times, flops=forward * times, backward_flops=self._back(frame, equation, forward, times, remats)
        )

    def _opaque(self, frame: Frame, equation: Equation, inside: Sequence[Frame], times: int, remats: int) -> Cost:
        """What is run as it stands: a custom rule, whose backward pass is its own."""
        forward = sum(sum(cost.flops for _, cost in self.costs(child, None, turns_of(child), 0)) for child in inside)
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
        return times * (forward * remats + self._pullbacks.flops_of(equation, active))


def _outermost_first(layers: tuple[LayerCall, ...]) -> list[LayerCall]:
    return sorted(layers, key=lambda layer: len(layer.path.components))


def _active(trace: Trace) -> Mapping[FrameVariable, None]:
    """The values through which the loss depends smoothly on a parameter."""
    arguments = zip(trace.arguments, trace.root.jaxpr.invars, strict=True)
    parameters = [variable for leaf, variable in arguments if leaf.family == naming.PARAM and leaf.differentiated]
    return ForwardFlow().closure((FrameVariable(trace.root, variable) for variable in parameters), _is_smooth)


def _is_smooth(step: Step) -> bool:
    renamed = step.way not in ("compute", "choose")
    return is_inexact(step.to.atom) and (renamed or not is_constant(step.frame.jaxpr.eqns[step.number]))
