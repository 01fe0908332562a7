"""This search finds the operation at which a gradient that is exactly zero is lost on its way from the loss.

A gradient is the sum of the terms that come back from every use of its value. It is zero for one of these reasons:

- a use has a *zero derivative*;
- the gradient that arrives at a use is zero already, and the search goes on from there;
- the branch that uses the value was not taken;
- the terms of several uses cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import numpy as np

from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.attempt import Attempt
from gradscope.capturing.explain.zeros.loop_steps import carried_past, is_parallel, iterations_after
from gradscope.capturing.explain.zeros.neighbourhood import (
    MOST_BYTES,
    Neighbourhood,
    differentiably,
    observe_neighbourhood,
)
from gradscope.capturing.explain.zeros.operand_names import OperandNames
from gradscope.capturing.explain.zeros.satisfied_terms import satisfied
from gradscope.capturing.explain.zeros.softmax_rows import single_weights
from gradscope.capturing.explain.zeros.use_results import NonzeroTerm, UseResult, VariableAt, ZeroDerivative
from gradscope.capturing.explain.zeros.zero_uses import EquationUse
from gradscope.dump.manifest.manifest import Cause
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.gradient_barriers import Barriers, location_of
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, variable_of

#: The most causes that are reported for one gradient.
_MOST_CAUSES: Final = 3
#: The most values that the search for one gradient visits.
_MOST_VALUES: Final = 2000
_TOO_LARGE: Final = "not looked into, because its path to the loss does not fit in memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """A `Zero` is a gradient that is exactly zero.

    Attributes:
        family: Its family.
        name: Its name.
        value: The value that it is the gradient with respect to.
        iteration: The iteration of the loops around that value.
    """

    family: str
    name: str
    value: ValueKey
    iteration: IterationIndex


def causes_of(
    run: Run, zeros: Sequence[Zero], flowing: Collection[ValueKey], most_bytes: int = MOST_BYTES
) -> tuple[Cause, ...]:
    """Returns why each of some gradients is exactly zero; those without a known reason are left out.

    Args:
        run: The run that found them.
        zeros: The gradients.
        flowing: Values whose gradients are not zero in some iteration; the search ends at them.
        most_bytes: The most bytes that may be observed.

    Returns:
        One cause for each gradient that has a known reason.
    """
    if not zeros:
        return ()
    frames = {frame.key: frame for frame in run.trace.root.walk()}
    around = {zero: frames[zero.value.frame] for zero in zeros}
    starts = {zero: FrameVariable(frame, variable_of(frame, zero.value)) for zero, frame in around.items()}
    unknown = {zero.value for zero in zeros}
    neighbourhood = observe_neighbourhood(run, list(starts.values()), set(flowing) - unknown, most_bytes)
    if neighbourhood is None:
        return tuple(Cause(family=zero.family, name=zero.name, why=_TOO_LARGE) for zero in zeros)
    search = _Search(run, neighbourhood, most_bytes)
    trails = {zero: _Trail(VariableAt(starts[zero], zero.iteration)) for zero in zeros}
    under_way = list(trails.values())
    while under_way:
        for trail in under_way:
            search.follow(trail)
        under_way = [trail for trail in under_way if trail.unobserved]
        search.observe([trail.unobserved for trail in under_way])
    whys = ((zero, trail.failure or "; ".join(trail.causes)) for zero, trail in trails.items())
    return tuple(Cause(family=zero.family, name=zero.name, why=why) for zero, why in whys if why)


class _Trail:
    """A `_Trail` is how far the search for the causes of one zero gradient has come.

    Attributes:
        waiting: The values that are still to be looked at.
        seen: Those and the values that were.
        causes: What was found, the cause nearest to the gradient first.
        unobserved: The values without which the search does not go on; empty where it is at its end.
        failure: Why the search failed; None where it did not.
    """

    def __init__(self, start: VariableAt) -> None:
        self.waiting = [start]
        self.seen = {start}
        self.causes: dict[str, None] = {}
        self.unobserved: tuple[FrameVariable, ...] = ()
        self.failure: str | None = None


class _UnobservedError(Exception):
    """Values have not been observed yet, without which the search does not go on."""

    def __init__(self, variables: tuple[FrameVariable, ...]) -> None:
        super().__init__()
        self.variables = variables


class _Search:
    """A `_Search` finds the causes of zero gradients.

    Args:
        run: The run.
        neighbourhood: The values observed around the gradients.
        most_bytes: The most bytes that may be observed once more.
    """

    def __init__(self, run: Run, neighbourhood: Neighbourhood, most_bytes: int) -> None:
        self._run, self._most_bytes, self._neighbourhood = run, most_bytes, neighbourhood
        self._beyond = set[FrameVariable]()
        self._too_large = set[tuple[FrameVariable, ...]]()
        self._look_once = cache(self._look)  # all iterations of a loop lead to the values behind it
        self._differentiably = partial(differentiably, run.trace.reachability)
        self._flow = ForwardFlow()
        self._barriers = Barriers(run.trace.root, run.trace.liveness)
        self._names = OperandNames(run.trace, neighbourhood)
        self._layers = {
            (layer.frame, number): layer.path.template
            for layer in sorted(run.trace.layers, key=lambda layer: layer.depth)
            for number in layer.equations
        }

    def follow(self, trail: _Trail) -> None:
        """Goes on with a search, to its end or to values that have to be observed first."""
        trail.unobserved = ()
        with Attempt() as attempt:
            while trail.waiting and len(trail.seen) < _MOST_VALUES and len(trail.causes) < _MOST_CAUSES:
                try:
                    causes, further = self._look_once(trail.waiting[0])
                except _UnobservedError as needed:
                    trail.unobserved = needed.variables
                    return
                del trail.waiting[0]
                trail.causes |= dict.fromkeys(causes)
                fresh = [value_at for value_at in further if value_at not in trail.seen]
                trail.seen.update(fresh)
                trail.waiting += fresh
        trail.failure = attempt.failure

    def observe(self, groups: Sequence[tuple[FrameVariable, ...]]) -> None:
        """Observes everything from groups of values to the loss: in one run of it, or one for each group that fits."""
        self._look_once.cache_clear()
        if not self._observes([variable for group in groups for variable in group]):
            self._too_large.update(group for group in groups if not self._observes(group))

    def _observes(self, variables: Sequence[FrameVariable]) -> bool:
        """Returns whether everything from some values to the loss is observed, which it is now if it fits in memory."""
        if not self._beyond.issuperset(variables):
            found = observe_neighbourhood(self._run, variables, (), self._most_bytes)
            if found is None:
                return False
            self._neighbourhood.include(found)
            self._beyond.update(self._flow.closure(variables))
        return True

    def _look(self, value_at: VariableAt) -> tuple[list[str], list[VariableAt]]:
        """Returns the causes at one value, and the values at which the arriving gradient is zero already."""
        zero_derivatives: list[str] = []
        further: list[VariableAt] = []
        flowing: dict[str, None] = {}
        results = [*self._computed(value_at), *self._renamed(value_at)]
        if not results:
            cut = self._barriers.between(value_at.variable)
            if cut and not cut.startswith("disconnected"):
                return [cut], []
            here = " in its iteration" if value_at.iteration else ""
            return [f"disconnected: nothing that the loss depends on is made from it{here}"], []
        for result in results:
            match result:
                case ZeroDerivative(reason=reason):
                    zero_derivatives.append(reason)
                case NonzeroTerm(use=use):
                    flowing[use] = None
                case _:
                    further.append(result)
        if flowing:
            cancelled = f"cancellation: what flows back from {' and '.join(flowing)} sums to exactly zero"
            known = partial(self._neighbourhood.value, iteration=value_at.iteration)
            return [single_weights(value_at.variable, known) or cancelled], []
        return zero_derivatives, further

    def _computed(self, value_at: VariableAt) -> Iterator[UseResult]:
        """Yields the result for each equation that computes with a value."""
        every = self._flow.steps(value_at.variable)
        steps = [step for step in every if step.way == "compute" and self._differentiably(step)]
        for frame, number in dict.fromkeys((step.frame, step.number) for step in steps):
            use = self._use(frame, number, value_at)
            if use is None:
                yield ZeroDerivative(f"not followed beyond {location_of(frame, number)}")
            elif not any(np.any(each) for each in use.cotangents):
                outputs = (step.to for step in steps if (step.frame, step.number) == (frame, number))
                yield from (VariableAt(variable, value_at.iteration) for variable in outputs)
            else:
                yield from self._of_use(use, value_at.iteration)

    def _of_use(self, use: EquationUse, iteration: IterationIndex) -> Sequence[UseResult]:
        """Returns the results for a use at which a gradient arrives."""
        where = location_of(use.frame, use.number)
        parts: dict[FrameVariable, np.ndarray] = {}
        with Attempt() as attempt:  # a collective runs inside its shard_map only
            if use.gradient().any():
                return [NonzeroTerm(where)]
            outputs = (FrameVariable(use.frame, each) for each in use.outputs)
            parts = {variable: at for variable, at in zip(outputs, use.goes_on(), strict=False) if at.any()}
            if not parts or tuple(parts) in self._too_large:
                return [ZeroDerivative(satisfied(self._run.trace.root, self._flow, use) or use.reason())]
        if attempt.failure is not None:
            return [ZeroDerivative(f"not followed beyond {where}, which {attempt.failure}")]
        if not self._beyond.issuperset(parts):
            raise _UnobservedError(tuple(parts))
        return [VariableAt(variable, iteration, at.tobytes()) for variable, at in parts.items()]

    def _use(self, frame: Frame, number: int, value_at: VariableAt) -> EquationUse | None:
        """Returns an equation's use of a value, with numbers; None where not all of them are known."""
        equation = frame.jaxpr.eqns[number]
        operands = [
            self._neighbourhood.value(FrameVariable(frame, atom), value_at.iteration) for atom in equation.invars
        ]
        if any(each is None for each in operands):
            return None
        outputs = [FrameVariable(frame, variable) for variable in filter(is_inexact, equation.outvars)]
        cotangents = [self._neighbourhood.cotangent(variable, value_at.iteration) for variable in outputs]
        return EquationUse(
            frame=frame,
            number=number,
            positions=tuple(n for n, atom in enumerate(equation.invars) if atom is value_at.variable.atom),
            operands=operands,
            cotangents=[
                np.zeros(variable.atom.aval.shape, variable.atom.aval.dtype) if each is None else each
                for variable, each in zip(outputs, cotangents, strict=True)
            ],
            layer=self._layers.get((frame, number)),
            names=[self._names.of(FrameVariable(frame, atom), value_at.iteration) for atom in equation.invars],
            part=value_at.part,
        )

    def _renamed(self, value_at: VariableAt) -> Iterator[UseResult]:
        """Yields the result for each variable of another frame that is the same value."""
        for step in self._flow.steps(value_at.variable):
            if step.way == "compute" or not self._differentiably(step):
                continue
            if step.to.frame.transfer.exclusive and not self._neighbourhood.was_executed(
                step.to.frame, value_at.iteration
            ):
                yield ZeroDerivative(f"branch not taken: {location_of(step.frame, step.number)}")
                continue
            use = location_of(step.frame, step.number)
            if any(loop.length == 0 for loop in step.to.frame.loops):
                yield from self._unlooped(step, value_at.iteration, use)
                continue
            for iteration in iterations_after(step, value_at.variable.frame, value_at.iteration):
                arrived = self._neighbourhood.cotangent(step.to, iteration)
                stacked = step.way == "stack" and not is_parallel(value_at.variable.frame)
                one = arrived[value_at.iteration[-1]] if stacked and arrived is not None else arrived
                if value_at.elements and step.way not in ("stack", "slice"):
                    same = value_at._replace(variable=step.to, iteration=iteration)
                    yield NonzeroTerm(use) if same.arriving(arrived) else same
                elif np.any(one):
                    yield NonzeroTerm(use)
                elif np.any(arrived):
                    yield ZeroDerivative(f"masked: iteration {value_at.iteration[-1]} of {use} is not taken")
                else:
                    yield VariableAt(step.to, iteration)

    def _unlooped(self, step: Step, iteration: IterationIndex, use: str) -> Iterator[UseResult]:
        """Yields the result for a loop of no iterations, which returns its first carry and uses nothing else."""
        carried = carried_past(step)
        for to in carried:
            arrives = np.any(self._neighbourhood.cotangent(to, iteration))
            yield NonzeroTerm(use) if arrives else VariableAt(to, iteration)
        if not carried:
            yield ZeroDerivative(f"disconnected: {use}, a loop of no iterations")
