"""Cutting groups the steps of a loss into segments, which end where the least has to be kept.

Iterations of a loop that is run in parts are segments of their own. If the observations of one segment are too large,
they are made in several runs of that segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradscope.instrument.plan import Plan
from gradscope.instrument.segments.program_steps import Step, Steps, Value, steps_of
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A `Segment` is a number of consecutive steps.

    Attributes:
        steps: The steps.
        arguments: Numbers of the function's arguments that it reads.
        reads: The values that earlier segments made and it reads.
        writes: The values that it makes and later segments read or the function returns.
        parts: The plans of what is observed in it, one for each run.
        makes_loss: Whether the loss is made in it.
    """

    steps: Sequence[Step]
    arguments: tuple[int, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    parts: tuple[Plan, ...]
    makes_loss: bool

    @property
    def iterations(self) -> range | None:
        """The iterations of the loop that it runs a part of; None where it runs all steps as a whole."""
        return self.steps[0].iterations


def segments_of(trace: Trace, plan: Plan, budget: int) -> list[Segment]:
    """Returns the segments of a loss, in program order.

    Args:
        trace: The trace; its loss is made by an equation.
        plan: The plan; it feeds, stops and differentiates nothing but the loss.
        budget: Bytes, for the values of one segment with their gradients, and for the observations of one run.
    """
    steps = steps_of(trace, plan, budget)
    last = _last_reads(trace, steps.all)
    ends = list(_ends(steps.all, last, budget))
    ranges = [range(*pair) for pair in itertools.pairwise([0, *ends])]
    observed = _by_range(steps, plan, ranges)
    return [
        _segment(trace, steps.all, numbers, last, _observing(plan.part(own), steps.all[numbers.start], budget))
        for numbers, own in zip(ranges, observed, strict=True)
    ]


def _segment(
    trace: Trace, steps: Sequence[Step], numbers: range, last: Mapping[Value, int], parts: Sequence[Plan]
) -> Segment:
    own = [steps[number] for number in numbers]
    made = dict.fromkeys(value for step in own for value in step.writes)
    read = [value for value in dict.fromkeys(v for step in own for v in step.reads) if value not in made]
    arguments = [_argument(value) for value in read]
    return Segment(
        steps=own,
        arguments=tuple(sorted(number for number in arguments if number is not None)),
        reads=tuple(value for value, number in zip(read, arguments, strict=True) if number is None),
        writes=tuple(value for value in made if last.get(value, 0) >= numbers.stop),
        parts=tuple(parts),
        makes_loss=any(_is_output(trace, value) and value.atom is trace.jaxpr.outvars[0] for value in made),
    )


def _argument(value: Value) -> int | None:
    """Returns the number of the function's argument that a value is; None for any other."""
    equation, position = value.frame.definitions[value.atom]
    return position if value.frame.parent is None and equation == OPERAND else None


def _observing(plan: Plan, step: Step, budget: int) -> Sequence[Plan]:
    """Returns the plans of what is observed in a segment that begins with a step, one for each run."""
    if step.iterations is None:
        return plan.parts(budget)
    length = step.frame.jaxpr.eqns[step.equation].params["length"]
    return plan.parts(budget * length // len(step.iterations))  # a plan counts all iterations


def _last_reads(trace: Trace, steps: Sequence[Step]) -> dict[Value, int]:
    """Returns for each value the last step that reads it; one behind all for an output of the function."""
    last = {value: number for number, step in enumerate(steps) for value in step.reads}
    return last | {value: len(steps) for step in steps for value in step.writes if _is_output(trace, value)}


def _is_output(trace: Trace, value: Value) -> bool:
    return value.frame is trace.root and not value.parts and value.atom in trace.jaxpr.outvars


def _ends(steps: Sequence[Step], last: Mapping[Value, int], budget: int) -> Iterator[int]:
    """Yields the end of each segment: in the latter half of what it may hold, where least is kept."""
    kept = _kept(steps, last)
    start = 0
    while start < len(steps):
        start = start + 1 if steps[start].iterations is not None else _end(steps, start, kept, budget)
        yield start


def _end(steps: Sequence[Step], start: int, kept: Sequence[int], budget: int) -> int:
    """Returns the end of a segment of whole equations."""
    filled: list[int] = []
    for step in itertools.takewhile(lambda step: step.iterations is None, itertools.islice(steps, start, None)):
        filled.append((filled[-1] if filled else 0) + step.size_bytes)
        if filled[-1] > budget and len(filled) > 1:
            filled.pop()
            break
    else:
        return start + len(filled)
    fullest = [at for at in range(len(filled)) if 2 * filled[at] >= filled[-1]]
    return start + 1 + min(reversed(fullest), key=lambda at: kept[start + at])


def _kept(steps: Sequence[Step], last: Mapping[Value, int]) -> list[int]:
    """Returns the bytes that are still to be read behind each step."""
    changes = [0] * (len(steps) + 1)
    for number, step in enumerate(steps):
        for value in step.writes:
            if last.get(value, number) > number:
                changes[number] += value.size_bytes
                changes[last[value]] -= value.size_bytes
    return list(itertools.accumulate(changes[:-1]))


def _by_range(steps: Steps, plan: Plan, ranges: Sequence[range]) -> list[list[int]]:
    """Returns the numbers of what a plan observes, by the segment that it is in; in loops, by each of several."""
    observed: list[list[int]] = [[] for _ in ranges]
    of_step = [at for at, numbers in enumerate(ranges) for _ in numbers]
    for number in plan.numbers:
        for at in dict.fromkeys(of_step[step] for step in steps.observing(*plan.key_of(number))):
            observed[at].append(number)
    return observed
