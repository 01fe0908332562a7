"""A loss whose stopped values stay as they are: what automatic differentiation differentiates.

`stop_gradient` says that a value is to count as constant. Finite differences do not know that: they see the loss change
by way of it, too. So, before a gradient is called wrong, the loss is run with every stopped value fed back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradscope.capturing.explain.neighbourhood import is_hidden
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import whole_tensor
from gradscope.tracing.jaxpr.frames import ValueKey, iterations
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.tracer import Trace


def stopped_loss(trace: Trace, here: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
    """The loss as a function of its flat arguments, what `stop_gradient` made being what it is at some of them.

    Args:
        trace: The traced loss.
        here: The arguments at which values are stopped.

    Returns:
        A pure function; None where nothing is stopped.
    """
    sites = _stopped(trace)
    if not sites:
        return None
    observing, _ = observing_program(trace, Plan(sites=sites, gradients=frozenset(), observe=whole_tensor))
    every_turn = {number: frozenset(iterations(site.loops)) for number, site in enumerate(sites)}
    plan = Plan(sites=sites, gradients=frozenset(), observe=whole_tensor, fed=every_turn)
    feeding, _ = observing_program(trace, plan)
    values = observing(list(here)).captured.values
    return lambda arguments: feeding(list(arguments), values).loss


def _stopped(trace: Trace) -> tuple[Site, ...]:
    """The values that `stop_gradient` makes, where they can be fed."""
    return tuple(
        trace.site_at(ValueKey(frame.key, number, 0))
        for frame in trace.root.walk()
        for number in sorted(trace.liveness.live(frame))
        if frame.jaxpr.eqns[number].primitive.name == "stop_gradient" and not is_hidden(frame)
    )
