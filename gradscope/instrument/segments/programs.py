"""The programs of a segment run it forwards, or forwards and backwards with what is observed in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from gradscope.instrument.observing_program import Reached, sinks_of
from gradscope.instrument.plan import EMPTY_PLAN, Plan
from gradscope.instrument.rewriting.frame_rules import RULES
from gradscope.instrument.rewriting.interpreter import Context, Evaluation
from gradscope.instrument.rewriting.observed_values import Captured, InjectedValues
from gradscope.instrument.segments.cutting import Segment
from gradscope.instrument.segments.program_steps import Step, Value
from gradscope.instrument.taps import watch
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import OPERAND, Frame
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_dropped, is_literal, sub_jaxprs, traced_as
from gradscope.tracing.jaxpr.transfers import loop_operands
from gradscope.tracing.tracer import Trace

#: The key, among a segment's cotangents, of the loss as the function's output; the others are by position.
LOSS: Final = -1


class Returned(NamedTuple):
    """A `Returned` is the pytree that one backward run of a segment returns.

    Attributes:
        captured: Observations of values.
        arrived: Observations of the gradients of the loss with respect to them, and of terms.
        reads: The cotangents of what it read, by position among the reads.
        gradients: Its share of the gradients with respect to the arguments, by argument number.
    """

    captured: Captured
    arrived: dict[int, Any]
    reads: dict[int, Any]
    gradients: dict[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A `Connected` states what the loss is differentiably connected to in a segment; tracing its program fills it in.

    Attributes:
        reached: Numbers of sites and terms, and of arguments.
        reads: Positions among the reads.
    """

    reached: Reached
    reads: set[int]


class Inputs(NamedTuple):
    """The `Inputs` are the pytree that a run of a segment receives.

    Attributes:
        arguments: The function's arguments that it reads, by number.
        reads: What it reads of earlier segments.
        start: The first of the iterations that it runs; 0 where it runs no part of a loop.
    """

    arguments: Mapping[int, Any]
    reads: Sequence[Any]
    start: Any


#: A function of a segment's inputs; returns what the segment writes.
Forward: TypeAlias = Callable[[Inputs], list[Any]]

#: A function of the same and of the cotangents of what the segment writes, by position.
Backward: TypeAlias = Callable[[Inputs, Mapping[int, Any]], Returned]


def forward_program(trace: Trace, segment: Segment) -> Forward:
    """Returns the program that runs a segment and observes nothing."""

    def program(inputs: Inputs) -> list[Any]:
        run = _SegmentRun(trace, Context(plan=EMPTY_PLAN, rules=RULES), segment, inputs)
        return [run.value(each) for each in segment.writes]

    return program


def backward_program(trace: Trace, segment: Segment, part: Plan, *, onward: bool) -> tuple[Backward, Connected]:
    """Returns the program that runs a segment forwards and backwards and observes it.

    Args:
        trace: The trace.
        segment: One of its segments.
        part: What is observed.
        onward: Whether the cotangents of what it reads and of the arguments are requested.
    """
    connected = Connected(reached=Reached(), reads=set())
    reached = connected.reached
    flowing = [at for at, value in enumerate(segment.reads) if onward and _flows(trace, value)]
    differentiated = [n for n in segment.arguments if onward and trace.arguments[n].differentiated]
    iterations = None if segment.iterations is None else len(segment.iterations)

    def program(inputs: Inputs, cotangents: Mapping[int, Any]) -> Returned:
        def run(reads: dict[int, Any], arguments: dict[int, Any], sinks: dict[int, Any]) -> Any:
            reads, arguments = watch(reads, connected.reads.add), watch(arguments, reached.arguments.add)
            injected = InjectedValues.nothing()._replace(sinks=sinks)
            context = Context(plan=part, rules=RULES, injected=injected, reached=reached.sites)
            own = inputs._replace(
                arguments={**inputs.arguments, **arguments},
                reads=[reads.get(at, value) for at, value in enumerate(inputs.reads)],
            )
            run = _SegmentRun(trace, context, segment, own)
            made = {at: run.value(segment.writes[at]) for at in cotangents if at != LOSS}
            if segment.makes_loss:
                made[LOSS] = run.loss()
            return made, run.captured

        reads = {at: inputs.reads[at] for at in flowing}
        arguments = {number: inputs.arguments[number] for number in differentiated}
        sinks = sinks_of(part, (), iterations=iterations)
        made, pull_back, captured = jax.vjp(run, reads, arguments, sinks, has_aux=True)
        if segment.makes_loss:
            cotangents = {**cotangents, LOSS: jnp.ones_like(made[LOSS])}
        returned, gradients, arrived = pull_back(dict(cotangents))
        return Returned(captured, arrived, returned, gradients)

    return program, connected


def _flows(trace: Trace, value: Value) -> bool:
    """Returns whether a cotangent may arrive at a value."""
    return trace.reachability.of(value.frame, value.atom) is Reach.GRADIENT


class _SegmentRun:
    """A `_SegmentRun` runs the steps of a segment, in one evaluation for each frame that they are in."""

    def __init__(self, trace: Trace, context: Context, segment: Segment, inputs: Inputs) -> None:
        root = trace.root
        self._start = inputs.start
        self._root = Evaluation(context, root.jaxpr, trace.constants)
        self._root.values.update((root.jaxpr.invars[number], value) for number, value in inputs.arguments.items())
        self._evaluations: dict[Frame, Evaluation] = {root: self._root}
        self._parts: dict[Value, Any] = {}
        for value, read in zip(segment.reads, inputs.reads, strict=True):
            self._write(value, read)
        for step in segment.steps:
            self._run(step)

    @property
    def captured(self) -> Captured:
        """What was observed, in all frames."""
        captured = Captured.nothing()
        for evaluation in self._evaluations.values():
            captured.take(evaluation.captured)
        return captured

    def value(self, value: Value) -> Any:
        """Returns a value that was read or made."""
        return self._parts[value] if value.parts else self._of(value.frame).read(value.atom)

    def loss(self) -> Any:
        """Returns the loss, which was made."""
        return self._root.handed_out()[0]

    def _write(self, value: Value, read: Any) -> None:
        if value.parts:
            self._parts[value] = read
        else:
            self._of(value.frame).values[value.atom] = read

    def _of(self, frame: Frame) -> Evaluation:
        """Returns the evaluation of a frame that is run in place."""
        if frame not in self._evaluations and frame.parent is not None and frame.equation is not None:
            number, branch = frame.key[-1]
            context = self._of(frame.parent).context.enter(number, branch, in_place=True)
            self._evaluations[frame] = Evaluation(context, frame.jaxpr, sub_jaxprs(frame.equation)[branch].constants)
        return self._evaluations[frame]

    def _received(self, frame: Frame, atoms: Iterable[Atom]) -> Evaluation:
        """Returns the evaluation of a frame that is run in place, with the atoms that it has from outside."""
        evaluation = self._of(frame)
        for atom in atoms:
            equation, position = (0, 0) if is_literal(atom) else frame.definitions.get(atom, (0, 0))
            if equation == OPERAND and frame.parent is not None and frame.equation is not None:
                outer = frame.equation.invars[position]
                evaluation.values[atom] = self._received(frame.parent, [outer]).read(outer)
        return evaluation

    def _run(self, step: Step) -> None:
        number, equation = step.equation, step.frame.jaxpr.eqns[step.equation]
        if step.kind == "equation":
            self._received(step.frame, equation.invars).run(range(number, number + 1))
        elif step.kind == "iterations":
            self._run_iterations(step)
        elif step.kind == "leave":
            child = step.frame.children[number][0]
            returned = self._received(child, child.jaxpr.outvars).handed_out()
            self._of(step.frame).write(number, equation.outvars, returned)
        else:
            self._of(step.frame).write(number, equation.outvars, self._joined(step))

    def _run_iterations(self, step: Step) -> None:
        """Runs some iterations of a scan, as a scan of these."""
        equation: Any = step.frame.jaxpr.eqns[step.equation]
        evaluation = self._received(step.frame, equation.invars)
        operands = loop_operands(equation, equation.invars)
        earlier = [self._parts[value] for value in step.reads if value.parts]
        carries = earlier or list(map(evaluation.read, operands.carries))
        count = len(step.iterations or ())
        slices = [
            jax.lax.dynamic_slice_in_dim(evaluation.read(atom), self._start, count) for atom in operands.sequences
        ]
        part = equation.replace(params={**equation.params, "length": count})
        values = [*map(evaluation.read, operands.constants), *carries, *slices]
        with traced_as(equation):
            outputs, captured = RULES["scan"](evaluation.context, step.equation, part, values)
        evaluation.captured.take(captured)
        returned = equation.outvars[len(operands.carries) :]
        stacked = [out for out, atom in zip(outputs[len(carries) :], returned, strict=True) if not is_dropped(atom)]
        self._parts.update(zip(step.writes, [*outputs[: len(carries)], *stacked], strict=True))

    def _joined(self, step: Step) -> list[Any]:
        """Returns the outputs of a scan that was run in parts; None for those that are dropped."""
        equation = step.frame.jaxpr.eqns[step.equation]
        carried = len(loop_operands(equation, equation.invars).carries)
        carries, slices = step.reads[:carried], step.reads[carried:]
        ordered = reversed(slices) if equation.params["reverse"] else slices
        stacked: dict[Any, list[Any]] = {}
        for value in ordered:
            stacked.setdefault(value.atom, []).append(self._parts[value])
        outputs = [jnp.concatenate(stacked[atom]) if atom in stacked else None for atom in equation.outvars[carried:]]
        return [*(self._parts[value] for value in carries), *outputs]
