"""`outputs_with_gradient` observes which outputs of a call the loss sends a gradient to that is not zero.

Dataflow does not always tell: what a solver returns beside its solution may go through a function whose own rule
returns zeros for it, as a check of whether the solver converged does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.jaxpr.frames import ValueKey
from gradscope.tracing.tracer import Trace


def outputs_with_gradient(trace: Trace, arguments: Sequence[Any], call: CustomRuleCall) -> Sequence[int]:
    """Returns those of the outputs that a call's rule gets a gradient of where that is not zero; all where all are.

    Args:
        trace: The traced loss.
        arguments: Its flat arguments.
        call: The call.
    """
    sites = tuple(trace.site_at(ValueKey(call.frame.key, call.number, position)) for position in call.outputs)
    plan = Plan(sites=sites, gradients=frozenset(range(len(sites))), observe=_is_nonzero)
    program, reached = observing_program(trace, plan)
    cotangents = jax.jit(program)(list(arguments)).cotangents
    arriving = {number for number in cotangents if number in reached.sites and np.any(np.asarray(cotangents[number]))}
    return [position for number, position in enumerate(call.outputs) if number in arriving] or call.outputs


def _is_nonzero(value: Any) -> Any:
    """Returns whether any element is not zero, as a number that a gradient can be; an observer."""
    return jnp.any(jax.lax.stop_gradient(value) != 0).astype(jnp.float32)
