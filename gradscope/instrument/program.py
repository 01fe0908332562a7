"""The observing program: a traced loss run forward and backward in one go, with everything planned observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.instrument.interpreter import Captured, Context, interpret
from gradscope.instrument.plan import Plan
from gradscope.instrument.rules import RULES
from gradscope.instrument.taps import watch
from gradscope.tracing.meshes import varying, varying_axes
from gradscope.tracing.tracer import Trace


class Observed(NamedTuple):
    """What one run of an observing program hands out; a pytree.

    Attributes:
        loss: The loss.
        auxiliary: The loss's other outputs, flat.
        captured: Observations of values, by site number.
        cotangents: Observations of the gradients of the loss with respect to them, by site number.
        gradients: Gradients with respect to the differentiable arguments, by argument number.
    """

    loss: Any
    auxiliary: list[Any]
    captured: Captured
    cotangents: dict[int, Any]
    gradients: dict[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the loss is differentiably connected to: numbers of sites and of arguments.

    Known once the program has been traced, whether or not it has run: a gradient that is zero because nothing arrives
    is another thing than a gradient whose value is zero.
    """

    sites: set[int] = field(default_factory=set[int])
    arguments: set[int] = field(default_factory=set[int])


def observing_program(trace: Trace, plan: Plan) -> tuple[Callable[[Sequence[Any]], Observed], Reached]:
    """The program that runs a traced loss on its flat arguments and observes it.

    Returns:
        A pure function of the flat arguments, to be jitted, vmapped or called as it is; and what the loss is connected
        to, which tracing that function fills in.
    """
    differentiated = [number for number, leaf in enumerate(trace.arguments) if leaf.differentiated]
    reached = Reached()

    def program(arguments: Sequence[Any]) -> Observed:
        def forward(chosen: dict[int, Any], sinks: dict[int, Any]) -> Any:
            watched = {n: watch(value, partial(reached.arguments.add, n)) for n, value in chosen.items()}
            values = [watched.get(number, value) for number, value in enumerate(arguments)]
            context = Context(plan=plan, rules=RULES, axes=axes, sinks=sinks, reached=reached.sites)
            (loss, *auxiliary), captured = interpret(context, trace.jaxpr, trace.constants, values)
            return loss, (auxiliary, captured)

        axes = varying_axes(arguments)
        chosen = {number: arguments[number] for number in differentiated}
        loss, pull_back, (auxiliary, captured) = jax.vjp(forward, chosen, _sinks(plan, axes), has_aux=True)
        gradients, cotangents = pull_back(jnp.ones_like(loss))
        return Observed(loss, auxiliary, captured, cotangents, gradients)

    return program, reached


def _sinks(plan: Plan, axes: Sequence[str]) -> dict[int, Any]:
    # Made inside the program: as its arguments they would be allocated, which for ResNet-50 is 0.8 GB.
    shapes = {number: plan.observed(number) for number in sorted(plan.gradients)}
    return {n: varying(jnp.zeros(s.shape, s.dtype, device=s.sharding), axes) for n, s in shapes.items()}
