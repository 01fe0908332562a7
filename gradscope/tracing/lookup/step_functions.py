"""Step functions at which the gradient of a tensor ends, while reductions of the tensor still hand one to it.

Weights are quantised as `round(w / s) * s` with `s = max(abs(w)) / 127`. Without a straight-through gradient nothing
arrives through `round`, and the gradient of `w` is that of its scale: zero but for the largest element.

A tensor counts where all that the loss makes of its elements, one by one, goes through step functions that a cotangent
arrives at, and everything else through reductions. So neither a straight-through gradient counts, by `stop_gradient`
or by a derivative rule, nor a step function whose result multiplies or is added to the tensor itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.operation_facts import StepFunction
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import ValueKey, made_at, variable_of
from gradscope.tracing.tracer import Trace

_STEPS: Final = frozenset({"ceil", "floor", "round", "sign"})
#: Compute each element from those at its index, or move elements.
_PER_ELEMENT: Final = COPIES | ADDITIONS | MULTIPLICATIONS | {
    "abs", "clamp", "exp", "integer_pow", "log", "logistic", "max", "min", "neg", "pow", "select_n", "sqrt", "square",
    "tanh",
}  # fmt: skip
_REDUCES: Final = "reduce_"
#: The most values that are looked at behind one tensor.
_NEAR: Final = 100


def step_functions(trace: Trace) -> tuple[StepFunction, ...]:
    """Returns the step functions at which gradients end, with each parameter and the nearest activation read there."""
    search = _Search(trace)
    return (*search.of_params(), *search.of_activations()) if search.has_steps() else ()


class _Ends(NamedTuple):
    """Where a value's elements end: the results of step functions, and the primitives of reductions."""

    steps: list[ValueKey]
    reductions: set[str]


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()

    def has_steps(self) -> bool:
        """Returns whether a cotangent arrives at any step function."""
        return any(
            equation.primitive.name in _STEPS and self._passes(FrameVariable(frame, equation.outvars[0]))
            for frame in self._frames.values()
            for equation in frame.jaxpr.eqns
        )

    def of_params(self) -> Iterator[StepFunction]:
        """Yields those of parameters."""
        for variable, leaf in zip(self._trace.root.jaxpr.invars, self._trace.arguments, strict=True):
            if leaf.family == naming.PARAM and math.prod(leaf.shape) > 1:
                ends = self._ends(FrameVariable(self._trace.root, variable))
                yield from (self._fact(naming.PARAM, leaf.name, each, ends) for each in ends.steps[:1])

    def of_activations(self) -> Iterator[StepFunction]:
        """Yields those of activations: of several that one reads element by element, the last is the nearest."""
        nearest: dict[ValueKey, StepFunction] = {}
        for site in self._trace.sites:
            names = [name for name in site.names if not name.operation]
            if names and math.prod(site.shape) > 1 and not site.opaque and site.differentiable:
                frame = self._frames[site.value.frame]
                ends = self._ends(FrameVariable(frame, variable_of(frame, site.value)))
                name = str(names[0].at([0] * len(site.loops)))
                nearest.update((each, self._fact(naming.ACTIVATION, name, each, ends)) for each in ends.steps[:1])
        yield from nearest.values()

    def _fact(self, family: str, name: str, step: ValueKey, ends: _Ends) -> StepFunction:
        primitive = self._frames[step.frame].jaxpr.eqns[step.equation].primitive.name
        source = self._trace.site_at(step).source
        return StepFunction(
            family=family, name=name, primitive=primitive, beside=tuple(sorted(ends.reductions)), source=source
        )

    def _ends(self, variable: FrameVariable) -> _Ends:
        """Returns the step functions and reductions at which a value's elements end.

        Nothing where some go on, and where there are no reductions: then the gradient is zero, which speaks for itself.
        """
        ends = _Ends([], set())
        waiting, seen = [variable], {variable}
        while waiting and len(seen) < _NEAR:
            one = waiting.pop()
            for step in self._flow.steps(one):
                primitive = step.frame.jaxpr.eqns[step.number].primitive.name
                if step.to in seen or not self._is_run(step) or primitive == "stop_gradient":
                    continue
                seen.add(step.to)
                if step.way == "compute" and primitive in _STEPS:
                    ends.steps.extend([made_at(step.frame, step.number, 0)] if self._passes(step.to) else [])
                elif step.way == "slice" or (_size(step.to) == _size(one) and _keeps_apart(step, primitive)):
                    waiting.append(step.to)  # also without a gradient: before a step function there is none
                elif not self._passes(step.to):
                    continue
                elif step.way == "compute" and primitive.startswith(_REDUCES):
                    ends.reductions.add(primitive)
                else:
                    return _Ends([], set())
        return _Ends([], set()) if waiting or not ends.reductions else ends

    def _passes(self, variable: FrameVariable) -> bool:
        return self._trace.reachability.of(*variable) is Reach.GRADIENT

    def _is_run(self, step: Step) -> bool:
        own_rule = step.to.frame.opaque or step.to.frame.bypassed
        return step.number in self._trace.liveness.live(step.frame) and not own_rule


def _keeps_apart(step: Step, primitive: str) -> bool:
    """Returns whether each element of a step's result is made of one element, or is one."""
    return step.way != "compute" or primitive in _PER_ELEMENT


def _size(variable: FrameVariable) -> int:
    return math.prod(variable.atom.aval.shape)
