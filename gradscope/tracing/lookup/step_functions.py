"""A tensor's gradient ends at step functions, while reductions of the tensor may still return one to it.

Weights are quantised as `round(w / s) * s` with `s = max(abs(w)) / 127`. Without a straight-through gradient nothing
arrives through `round`, and the gradient of `w` is that of its scale: zero but for the largest element.

A tensor counts where all that the loss makes of its elements, one by one, goes through step functions that a cotangent
arrives at, or through integers, and everything else through reductions that scale the result. Of a parameter, a
comparison is a step function, too, and reductions may be of a penalty: where it is only compared, as in
`where(w > 0, s, -s)`, weight decay is all that moves it. An activation may choose a code by `argmin`, on which other
parameters work: without a straight-through gradient, what pulls it to the code is all that it gets. So neither a
straight-through gradient counts, by `stop_gradient` or by a derivative rule, nor a step function whose result
multiplies or is added to the tensor itself, nor one beside other statistics of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.operation_facts import StepFunction
from gradscope.primitive_groups import ADDITIONS, COPIES, MULTIPLICATIONS
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, is_inexact
from gradscope.tracing.jaxpr.frames import ValueKey, made_at, variable_of
from gradscope.tracing.jaxpr.jaxcompat import Equation, is_literal
from gradscope.tracing.tracer import Trace

_STEPS: Final = frozenset({"ceil", "floor", "round", "sign"})
#: Choose by a value, whatever it is otherwise.
_CHOICES: Final = frozenset({"argmin", "argmax"})
_STEPS_OF_PARAMS: Final = _STEPS | {"gt", "ge", "lt", "le"}
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
    return (*search.of_params(), *(search.of_activations() if search.has_steps() else ()))


class _Ends(NamedTuple):
    """`_Ends` are where a value's elements end: at results of step functions, and at reductions that scale these."""

    steps: Sequence[ValueKey] = ()
    reductions: Collection[str] = ()


class _Followed(NamedTuple):
    """A `_Followed` value has the step function or the cast that it is a result of; None before any."""

    variable: FrameVariable
    stepped: ValueKey | None


class _Found(NamedTuple):
    """A `_Found` has the step functions with what has a gradient behind them, and the reductions with their results."""

    steps: list[tuple[ValueKey, FrameVariable]]
    reductions: list[tuple[str, FrameVariable]]


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._flow = ForwardFlow()

    def has_steps(self) -> bool:
        """Returns whether there is any step function, a choice, or a cast to integers."""
        return any(
            equation.primitive.name in _STEPS | _CHOICES or _is_cast(equation)
            for frame in self._frames.values()
            for equation in frame.jaxpr.eqns
        )

    def of_params(self) -> Iterator[StepFunction]:
        """Yields those of parameters."""
        for variable, leaf in zip(self._trace.root.jaxpr.invars, self._trace.arguments, strict=True):
            if leaf.family == naming.PARAM and math.prod(leaf.shape) > 1:
                ends = self._ends(FrameVariable(self._trace.root, variable), of_param=True)
                yield from (self._fact(naming.PARAM, leaf.name, each, ends) for each in ends.steps[:1])

    def of_activations(self) -> Iterator[StepFunction]:
        """Yields those of activations: of several that one reads element by element, the last is the nearest."""
        nearest: dict[ValueKey, StepFunction] = {}
        for site in self._trace.sites:
            names = [name for name in site.names if not name.operation]
            if names and math.prod(site.shape) > 1 and not site.opaque and site.differentiable:
                frame = self._frames[site.value.frame]
                ends = self._ends(FrameVariable(frame, variable_of(frame, site.value)), of_param=False)
                name = str(names[0].at([0] * len(site.loops)))
                nearest.update((each, self._fact(naming.ACTIVATION, name, each, ends)) for each in ends.steps[:1])
        yield from nearest.values()

    def _fact(self, family: str, name: str, step: ValueKey, ends: _Ends) -> StepFunction:
        primitive = self._primitive_at(step)
        source = self._trace.site_at(step).source
        return StepFunction(
            family=family, name=name, primitive=primitive, beside=tuple(sorted(ends.reductions)), source=source
        )

    def _ends(self, variable: FrameVariable, *, of_param: bool) -> _Ends:
        """Returns the step functions and reductions at which a value's elements end.

        Nothing where some go on, and where no reduction scales what the step functions return, or is of a penalty of a
        parameter: without any, the gradient is zero, which speaks for itself, and a reduction of another kind is a
        feature of its own.
        """
        found = _Found([], [])
        waiting: list[_Followed] = [_Followed(variable, None)]
        seen, plain = {waiting[0]}, {variable}
        while waiting and len(seen) < _NEAR:
            one = waiting.pop()
            for step in self._flow.steps(one.variable):
                primitive = step.frame.jaxpr.eqns[step.number].primitive.name
                reached = _Followed(step.to, one.stepped)
                if reached in seen or not self._is_run(step) or _stops(step):
                    continue
                seen.add(reached)
                steps = _STEPS_OF_PARAMS if of_param else _STEPS | _CHOICES
                after = self._after(one, step, primitive, found, steps)
                if after is None:
                    return _Ends()
                waiting += after
                plain.update(each.variable for each in after if each.stepped is None)
        if waiting:
            return _Ends()
        # A choice may have a comparison of the elements, and the elements themselves.
        found = found._replace(steps=[each for each in found.steps if each[1] not in plain])
        chosen = [each for each in found.steps if self._primitive_at(each[0]) in _CHOICES]
        if chosen:
            beside = self._penalties(found) if all(self._leads_on(variable) for _, variable in chosen) else ()
        else:
            beside = self._scaling(found) or (self._penalties(found) if of_param else ())
        return _Ends([key for key, _ in found.steps], beside) if beside else _Ends()

    def _after(
        self, one: _Followed, step: Step, primitive: str, found: _Found, steps: frozenset[str]
    ) -> list[_Followed] | None:
        """Returns what to follow behind a step, and notes where elements end; None where they go on by another way."""
        here = made_at(step.frame, step.number, 0) if step.way == "compute" else None
        if not is_inexact(step.to.atom):  # integers go anywhere, until they are numbers with a gradient again
            cast = one.stepped or here if primitive == "convert_element_type" or primitive in steps else None
            stepped = cast if is_inexact(one.variable.atom) else one.stepped
            return [] if stepped is None else [_Followed(step.to, stepped)]
        stepped = one.stepped if here is None or primitive not in steps else here
        has_gradient = self._passes(step.to)
        if stepped is not None and has_gradient and (stepped is here or not is_inexact(one.variable.atom)):
            found.steps.append((stepped, step.to))
            return []
        repeats = not has_gradient and primitive in COPIES
        if (
            stepped is here
            or step.way == "slice"
            or repeats
            or (_size(step.to) == _size(one.variable) and _keeps_apart(step))
        ):
            return [_Followed(step.to, stepped)]  # also without a gradient: before a step function there is none
        if has_gradient and here is not None and primitive.startswith(_REDUCES):
            found.reductions.append((primitive, step.to))
            return []
        if has_gradient:
            return None
        return [_Followed(step.to, stepped)] if _CHOICES & steps else []  # a distance to each code, before the choice

    def _scaling(self, found: _Found) -> set[str]:
        """Returns the reductions whose results multiply those of the step functions, or divide them."""
        stepped = self._flow.closure((variable for _, variable in found.steps), _keeps_apart)
        scaling: set[str] = set()
        for primitive, variable in found.reductions:
            scales = self._flow.closure([variable], lambda step: _keeps_apart(step) and is_inexact(step.to.atom))
            used = ((each, step) for each in scales if each not in stepped for step in self._flow.steps(each))
            products = (
                step for _, step in used if step.frame.jaxpr.eqns[step.number].primitive.name in MULTIPLICATIONS
            )
            factors = (FrameVariable(step.frame, atom) for step in products
                       for atom in step.frame.jaxpr.eqns[step.number].invars if not is_literal(atom))  # fmt: skip
            scaling |= {primitive} if any(each in stepped and each not in scales for each in factors) else set()
        return scaling

    def _penalties(self, found: _Found) -> set[str]:
        """Returns the reductions of a penalty, all results behind which are single numbers; none where others exist."""
        behind = self._flow.closure(variable for _, variable in found.reductions) if found.steps else ()
        return {primitive for primitive, _ in found.reductions} if all(_size(each) == 1 for each in behind) else set()

    def _leads_on(self, chosen: FrameVariable) -> bool:
        """Returns whether a parameter with no part in the choice works on what is chosen, and sends it a gradient."""
        behind = {each for each in self._flow.closure([chosen], lambda step: not _stops(step)) if _size(each) > 1}
        pairs = zip(self._trace.root.jaxpr.invars, self._trace.arguments, strict=True)
        params = (FrameVariable(self._trace.root, atom) for atom, leaf in pairs if leaf.family == naming.PARAM)
        reached = (self._flow.closure([param]) for param in params)
        return any(chosen not in each and not behind.isdisjoint(each) for each in reached)

    def _primitive_at(self, step: ValueKey) -> str:
        return self._frames[step.frame].jaxpr.eqns[step.equation].primitive.name

    def _passes(self, variable: FrameVariable) -> bool:
        return self._trace.reachability.of(*variable) is Reach.GRADIENT

    def _is_run(self, step: Step) -> bool:
        own_rule = step.to.frame.opaque or step.to.frame.bypassed
        return step.number in self._trace.liveness.live(step.frame) and not own_rule


def _keeps_apart(step: Step) -> bool:
    """Returns whether each element of a step's result is made of one element, or is one."""
    return step.way != "compute" or step.frame.jaxpr.eqns[step.number].primitive.name in _PER_ELEMENT


def _stops(step: Step) -> bool:
    return step.frame.jaxpr.eqns[step.number].primitive.name == "stop_gradient"


def _is_cast(equation: Equation) -> bool:
    casts = equation.primitive.name == "convert_element_type"
    return casts and is_inexact(equation.invars[0]) and not is_inexact(equation.outvars[0])


def _size(variable: FrameVariable) -> int:
    return math.prod(variable.atom.aval.shape)
