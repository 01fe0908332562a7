"""Segments run a traced loss part by part, forwards and then backwards, so that little of it is in memory at a time.

A *segment* is a number of consecutive equations of the root frame. Forwards, each is run by itself and only the values
that later segments read are kept. Backwards, from the last to the first, each is run again from the values that it
read, observed, and differentiated with the cotangents of its outputs. This is checkpointing (Chen et al.), with the
host between the segments, where observations can be written to a file and freed.

Segments end where the least has to be kept. If the observations of one segment are too large, as in the body of a long
scan, they are made in several runs of that segment.

References:
    T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174 (2016).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from gradscope.instrument.observing_program import Reached, sinks_of
from gradscope.instrument.plan import EMPTY_PLAN, Plan
from gradscope.instrument.rewriting.frame_rules import RULES
from gradscope.instrument.rewriting.interpreter import Context, Evaluation
from gradscope.instrument.rewriting.observed_values import Captured, InjectedValues
from gradscope.instrument.rewriting.program_parts import last_reads, part_of
from gradscope.instrument.taps import watch
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.tracer import Trace

#: The key, among a segment's cotangents, of the loss as the function's output; the others are by position.
LOSS: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A `Segment` is a number of consecutive equations of the root frame.

    Attributes:
        numbers: The equations' numbers.
        reads: The variables that earlier segments made and it reads.
        writes: The variables that it makes and later segments read or the function returns.
        parts: The plans of what is observed in it, one for each run.
        makes_loss: Whether the loss is made in it.
    """

    numbers: range
    reads: tuple[Atom, ...]
    writes: tuple[Atom, ...]
    parts: tuple[Plan, ...]
    makes_loss: bool


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


#: A function of the loss's flat arguments and what a segment reads; returns what the segment writes.
Forward: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], list[Any]]

#: A function of the same and of the cotangents of what the segment writes, by position.
Backward: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Mapping[int, Any]], Returned]


class Segments:
    """`Segments` are a traced loss, split.

    Args:
        trace: The trace; its loss is made by an equation of the root frame.
        plan: The plan; it feeds, stops and differentiates nothing but the loss.
        budget: Bytes, for the values of one segment with their gradients, and for the observations of one run.

    Attributes:
        all: The segments, in program order.
    """

    def __init__(self, trace: Trace, plan: Plan, budget: int) -> None:
        self._trace = trace
        self._jaxpr = trace.root.jaxpr
        last = last_reads(trace.root.jaxpr)
        ends = list(_ends(trace, last, budget))
        pieces = [range(*pair) for pair in itertools.pairwise([0, *ends])]
        observed = _by_piece(trace, plan, pieces)
        self.all = tuple(
            self._segment(numbers, last, plan.part(own).parts(budget))
            for numbers, own in zip(pieces, observed, strict=True)
        )

    @property
    def kept_bytes(self) -> int:
        """The bytes of all values that are kept between the segments."""
        return sum(bytes_of(atom.aval) for segment in self.all for atom in segment.writes)

    def forward(self, segment: Segment) -> Forward:
        """Returns the program that runs a segment and observes nothing."""

        def program(arguments: Sequence[Any], reads: Sequence[Any]) -> list[Any]:
            context = Context(plan=EMPTY_PLAN, rules=RULES)
            evaluation = self._evaluated(context, segment, dict(enumerate(arguments)), dict(enumerate(reads)))
            return [evaluation.values[atom] for atom in segment.writes]

        return program

    def backward(self, segment: Segment, part: Plan, *, onward: bool) -> tuple[Backward, Connected]:
        """Returns the program that runs a segment forwards and backwards and observes it.

        Args:
            segment: The segment.
            part: What is observed.
            onward: Whether the cotangents of what it reads and of the arguments are requested.
        """
        connected = Connected(reached=Reached(), reads=set())
        reached = connected.reached
        flowing = [at for at, atom in enumerate(segment.reads) if onward and self._flows(atom)]
        differentiated = [n for n, leaf in enumerate(self._trace.arguments) if onward and leaf.differentiated]

        def program(arguments: Sequence[Any], reads: Sequence[Any], cotangents: Mapping[int, Any]) -> Returned:
            def run(chosen: dict[int, Any], injected: dict[int, Any], sinks: dict[int, Any]) -> Any:
                chosen = watch(chosen, connected.reads.add)
                injected = watch(injected, reached.arguments.add)
                sinks_only = InjectedValues.nothing()._replace(sinks=sinks)
                context = Context(plan=part, rules=RULES, injected=sinks_only, reached=reached.sites)
                own = dict(enumerate(arguments)) | injected, dict(enumerate(reads)) | chosen
                evaluation = self._evaluated(context, segment, *own)
                made = {at: evaluation.values[segment.writes[at]] for at in cotangents if at != LOSS}
                if segment.makes_loss:
                    made[LOSS] = evaluation.handed_out()[0]
                return made, evaluation.captured

            chosen = {at: reads[at] for at in flowing}
            injected = {number: arguments[number] for number in differentiated}
            made, pull_back, captured = jax.vjp(run, chosen, injected, sinks_of(part, ()), has_aux=True)
            if segment.makes_loss:
                cotangents = {**cotangents, LOSS: jnp.ones_like(made[LOSS])}
            returned, gradients, arrived = pull_back(dict(cotangents))
            return Returned(captured, arrived, returned, gradients)

        return program, connected

    def _evaluated(
        self, context: Context, segment: Segment, arguments: Mapping[int, Any], reads: Mapping[int, Any]
    ) -> Evaluation:
        evaluation = Evaluation(context, self._jaxpr, self._trace.constants)
        evaluation.values.update((self._jaxpr.invars[number], value) for number, value in arguments.items())
        evaluation.values.update((segment.reads[at], value) for at, value in reads.items())
        evaluation.run(segment.numbers)
        return evaluation

    def _flows(self, atom: Atom) -> bool:
        """Returns whether a cotangent may arrive at a value of the root frame."""
        return self._trace.reachability.of(self._trace.root, atom) is Reach.GRADIENT

    def _segment(self, numbers: range, last: Mapping[Atom, int], parts: Sequence[Plan]) -> Segment:
        part = part_of(self._jaxpr, numbers, last)
        made = (variable for number in numbers for variable in self._jaxpr.eqns[number].outvars)
        return Segment(
            numbers=numbers,
            reads=tuple(atom for atom in part.reads if atom in last),  # arguments and constants are there anyway
            writes=part.writes,
            parts=tuple(parts),
            makes_loss=self._jaxpr.outvars[0] in made,
        )


def bytes_of(aval: Any) -> int:
    """Returns the bytes of a value; 0 for a value without a size in memory, such as a typed key."""
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return 0 if extended else math.prod(aval.shape) * aval.dtype.itemsize


def _ends(trace: Trace, last: Mapping[Atom, int], budget: int) -> Iterator[int]:
    """Yields the end of each segment, in equations: in the latter half of what it may hold, where least is kept."""
    equations = trace.root.jaxpr.eqns
    sizes = [2 * sum(bytes_of(variable.aval) for variable in equation.outvars) for equation in equations]
    kept = _kept(trace, last)
    start = 0
    while start < len(equations):
        filled = list(itertools.accumulate(sizes[start:]))
        most = max(1, sum(size <= budget for size in filled))
        if most == len(filled):
            break
        fullest = [at for at in range(most) if 2 * filled[at] >= filled[most - 1]]
        start += 1 + min(reversed(fullest), key=lambda at, start=start: kept[start + at])
        yield start
    yield len(equations)


def _kept(trace: Trace, last: Mapping[Atom, int]) -> list[int]:
    """Returns the bytes that are still to be read behind each equation."""
    equations = trace.root.jaxpr.eqns
    changes = [0] * (len(equations) + 1)
    for number, equation in enumerate(equations):
        for variable in equation.outvars:
            if last.get(variable, number) > number:
                changes[number] += bytes_of(variable.aval)
                changes[last[variable]] -= bytes_of(variable.aval)
    return list(itertools.accumulate(changes[:-1]))


def _by_piece(trace: Trace, plan: Plan, pieces: Sequence[range]) -> list[list[int]]:
    """Returns the numbers of what a plan observes, by the segment of the root frame that it is in."""
    observed: list[list[int]] = [[] for _ in pieces]
    of_equation = [at for at, numbers in enumerate(pieces) for _ in numbers]
    for number in plan.numbers:
        frame, equation, position = plan.key_of(number)
        at = frame[0][0] if frame else equation
        if at == len(of_equation):  # a use as one of the function's outputs, of which only the loss has a gradient
            at = trace.root.definitions[trace.root.jaxpr.outvars[position]][0]
        observed[of_equation[at]].append(number)
    return observed
