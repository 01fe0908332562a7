"""A run has an observing program's inputs and outputs together, and the index of each observation in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gradscope.instrument.observing_program import Observed, Reached
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.rewriting.observed_values import Captured
from gradscope.naming import IterationIndex
from gradscope.tracing.jaxpr.frames import Loop, iterations
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A `Run` holds the inputs and outputs of one run of an observing program.

    Attributes:
        trace: The traced loss.
        plan: What was observed.
        spec: Which observations are shown.
        arguments: The flat arguments it ran on; None for those that were not kept.
        observed: The outputs.
        reached: The values to which the loss is connected.
        sites_only: Whether another run shows the arguments, their gradients and the auxiliary outputs.
        iterations: The iterations of the outermost loop that it ran; None for all.
    """

    trace: Trace
    plan: Plan
    spec: CaptureSpec
    arguments: Sequence[Any]
    observed: Observed
    reached: Reached
    sites_only: bool = False
    iterations: range | None = None

    def without_tensors(self) -> Run:
        """Returns the run without the tensors of its sites: with its loss, parameters and their gradients only."""
        observed = self.observed._replace(captured=Captured.nothing(), cotangents={}, auxiliary=[])
        return replace(self, observed=observed)


class SiteIteration(NamedTuple):
    """A `SiteIteration` is one iteration of the loops around a site.

    Attributes:
        at: The index of its observation along the leading axes.
        nominal: The iteration by which it is looked up: with 0 for every `while`, of which only the last is observed.
        iteration: The iteration that ran, those of `while` loops included.
        executed: Whether it ran: False in a branch that was not taken and in a loop of no iterations.
    """

    at: tuple[int, ...]
    nominal: IterationIndex
    iteration: IterationIndex
    executed: bool


def site_iterations(run: Run, number: int) -> Iterator[SiteIteration]:
    """Yields the iterations of the loops around a site or term of the plan, in order of their indices."""
    loops = run.plan.tap_point(number).loops
    captured = run.observed.captured
    executed = captured.executed.get(number)
    counts = captured.iterations.get(number)
    for at, iteration, last, ran in observed_iterations(loops, counts, run.iterations):
        yield SiteIteration(at, iteration, last, ran and (executed is None or bool(np.asarray(executed)[at])))


def observed_iterations(
    loops: Sequence[Loop], counts: Any, ran: range | None = None
) -> Iterator[tuple[tuple[int, ...], IterationIndex, IterationIndex, bool]]:
    """Yields, for each iteration of some loops, the index of its observation, its nominal number, and the one that ran.

    The last of the four is whether any ran.

    Args:
        loops: The loops around a value, outermost first.
        counts: How many iterations each `while` among them ran, along the last axis; None where there is none, or where
            that is not known yet: the nominal number counts as the one that ran.
        ran: The iterations of the outermost loop that were observed; None for all.
    """
    for iteration in iterations(loops):
        if ran is not None and iteration[0] not in ran:
            continue
        at = tuple(index for index, loop in zip(iteration, loops, strict=True) if loop.length is not None)
        if ran is not None:
            at = (at[0] - ran.start, *at[1:])
        if counts is None:
            yield at, iteration, iteration, True
            continue
        counted = iter(np.asarray(counts)[at].tolist())
        last = [next(counted) - 1 if loop.length is None else t for t, loop in zip(iteration, loops, strict=True)]
        yield at, iteration, tuple(max(index, 0) for index in last), min(last, default=0) >= 0
