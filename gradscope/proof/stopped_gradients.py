"""`stopped_loss` returns a loss in which the values of `stop_gradient` are constant.

Automatic differentiation treats the values of `stop_gradient` as constants. Finite differences do not: they include the
change of the loss through such a value. So before a gradient is reported as wrong, the loss is run again with every
stopped value fed back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradscope.capturing.explain.zeros.neighbourhood import is_hidden
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import whole_tensor
from gradscope.tracing.jaxpr.frames import ValueKey, iterations
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.tracer import Trace


def stopped_loss(trace: Trace, here: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
    """Returns the loss as a function of its flat arguments, with the values of `stop_gradient` kept constant.

    Args:
        trace: The traced loss.
        here: The flat arguments at which the stopped values are computed.

    Returns:
        A pure function; None where nothing is stopped.
    """
    sites = _stopped(trace)
    if not sites:
        return None
    observing, _ = observing_program(trace, Plan(sites=sites, gradients=frozenset(), observe=whole_tensor))
    every_iteration = {number: frozenset(iterations(site.loops)) for number, site in enumerate(sites)}
    plan = Plan(sites=sites, gradients=frozenset(), observe=whole_tensor, fed=every_iteration)
    feeding, _ = observing_program(trace, plan)
    values = observing(list(here)).captured.values
    return lambda arguments: feeding(list(arguments), values).loss


def _stopped(trace: Trace) -> tuple[Site, ...]:
    """Returns the sites of the values of `stop_gradient` that can be fed."""
    return tuple(
        trace.site_at(ValueKey(frame.key, number, 0))
        for frame in trace.root.walk()
        for number in sorted(trace.liveness.live(frame))
        if frame.jaxpr.eqns[number].primitive.name == "stop_gradient" and not is_hidden(frame)
    )
