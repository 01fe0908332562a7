"""The observing program runs a traced loss forward and backward once, and returns everything that the plan observes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from gradscope.instrument.plan import Plan
from gradscope.instrument.rewriting.frame_rules import RULES
from gradscope.instrument.rewriting.interpreter import Context, interpret
from gradscope.instrument.rewriting.observed_values import Captured, InjectedValues
from gradscope.instrument.taps import watch
from gradscope.tracing.jaxpr.sharding import varying, varying_axes, zeros_of
from gradscope.tracing.tracer import Trace


class Observed(NamedTuple):
    """An `Observed` is the pytree that one run of an observing program returns.

    Attributes:
        loss: The loss; None where it is not requested.
        auxiliary: The loss's other outputs, flat; None for those that are not requested.
        captured: Observations of values, by site number.
        cotangents: Observations of the gradients of the loss with respect to them, by site number; those of terms too.
        gradients: Gradients with respect to the differentiable arguments, by argument number.
    """

    loss: Any
    auxiliary: list[Any]
    captured: Captured
    cotangents: dict[int, Any]
    gradients: dict[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A `Reached` has the numbers of the sites, terms and arguments that the loss is differentiably connected to.

    They are known once the program has been traced, whether or not it has run. They distinguish a gradient at which
    nothing arrives from a gradient whose value is zero.
    """

    sites: set[int] = field(default_factory=set[int])
    arguments: set[int] = field(default_factory=set[int])


class Program(Protocol):
    """A `Program` is a pure function, which may be jitted, vmapped or called directly."""

    def __call__(
        self, arguments: Sequence[Any], feeds: Mapping[int, Any] = ..., cotangents: Sequence[Any] = ..., /
    ) -> Observed:
        """Runs forward and backward.

        Args:
            arguments: The function's flat arguments; None for those that nothing requested depends on.
            feeds: A value for each of the plan's fed sites.
            cotangents: The initial gradient of each of the plan's seeds; ones where empty.
        """
        ...


def observing_program(trace: Trace, plan: Plan) -> tuple[Program, Reached]:
    """Returns the program that runs a traced loss on its flat arguments and observes it.

    Returns:
        The program, and the `Reached` of the loss, or of what is differentiated in its place. Tracing the program fills
        in the latter.
    """
    differentiated = [number for number, leaf in enumerate(trace.arguments) if leaf.differentiated]
    reached = Reached()

    def program(
        arguments: Sequence[Any], feeds: Mapping[int, Any] = MappingProxyType({}), cotangents: Sequence[Any] = (), /
    ) -> Observed:
        def forward(chosen: dict[int, Any], sinks: dict[int, Any]) -> Any:
            watched = watch(chosen, reached.arguments.add)
            values = [watched.get(number, value) for number, value in enumerate(known)]
            injected = InjectedValues(
                sinks, feeds, plan.marks(plan.fed), plan.marks(plan.stopped), plan.marks(plan.gradient_fed)
            )
            context = Context(plan=plan, rules=RULES, axes=axes, injected=injected, reached=reached.sites)
            (loss, *auxiliary), captured = interpret(context, trace.jaxpr, trace.constants, values)
            seeds = [captured.seeds[site][iteration] for site, iteration in plan.seeds] or [loss]
            return seeds, (loss, auxiliary, captured._replace(seeds={}))

        known = [
            zeros_of(variable.aval) if value is None else value
            for variable, value in zip(trace.jaxpr.invars, arguments, strict=True)
        ]
        axes = varying_axes(known)
        chosen = {number: known[number] for number in differentiated}
        seeds, pull_back, (loss, auxiliary, captured) = jax.vjp(forward, chosen, sinks_of(plan, axes), has_aux=True)
        gradients, arrived = pull_back(list(cotangents) or [jnp.ones_like(seed) for seed in seeds])
        loss, *auxiliary = (
            value if requested else None
            for value, requested in zip([loss, *auxiliary], _outputs(trace, plan), strict=True)
        )
        return Observed(loss, auxiliary, captured, arrived, gradients)

    return program, reached


def observing_values(trace: Trace, plan: Plan) -> Callable[[Sequence[Any]], Captured]:
    """Returns the program that runs a traced loss forward only, and returns what it observed by site number.

    Args:
        trace: The loss.
        plan: What to observe; no gradients, and no values in place of computed ones.
    """

    def program(arguments: Sequence[Any], /) -> Captured:
        known = [
            zeros_of(variable.aval) if value is None else value
            for variable, value in zip(trace.jaxpr.invars, arguments, strict=True)
        ]
        context = Context(plan=plan, rules=RULES, axes=varying_axes(known))
        return interpret(context, trace.jaxpr, trace.constants, known)[1]

    return program


def _outputs(trace: Trace, plan: Plan) -> Sequence[bool]:
    return [True] * len(trace.outputs) if plan.outputs is None else plan.outputs


def sinks_of(plan: Plan, axes: Sequence[str], *, iterations: int | None = None) -> dict[int, Any]:
    """Returns zeros of the shapes of a plan's observed cotangents, by number.

    Args:
        plan: The plan.
        axes: Mesh axes over which they are to vary.
        iterations: The number of iterations of the outermost loop that are run; None for all.
    """
    # Made inside the program: as its arguments they would be allocated, which for ResNet-50 is 0.8 GB.
    shapes = {number: plan.observed(number) for number in plan.sinks}
    if iterations is not None:
        shapes = {n: each.update(shape=(iterations, *each.shape[1:])) for n, each in shapes.items()}
    return {n: varying(jnp.zeros(s.shape, s.dtype, device=s.sharding), axes) for n, s in shapes.items()}
