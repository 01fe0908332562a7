"""Isolation runs every segment between pinned values on injected values and injected cotangents, in one trace.

Errors do not accumulate in such a run. Each *pinned* value is observed as it is computed, and then replaced by
the injected one; in the backward pass the cotangent that arrives at it is observed, and then replaced likewise. So one
program shows for each segment what it computes from right operands, and what it returns for right cotangents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.instrument.observing_program import Observed, observing_program
from gradscope.instrument.plan import Plan, Seed
from gradscope.instrument.query.planning import has_gradient
from gradscope.instrument.taps import full_tensor
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.reachability import reachability_from
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.leaves import as_reached
from gradscope.tracing.tracer import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedValue:
    """A `PinnedValue` is the value and the cotangent that are injected at one pinned value.

    Attributes:
        values: The value, with a leading axis for each loop around it.
        iterations: The iterations in which it is injected; in the others the computed value is used.
        cotangents: The gradient of the loss with respect to it, likewise, zeros where there is none; None where it is
            not known in any iteration.
    """

    values: Any
    iterations: frozenset[IterationIndex]
    cotangents: Any = None


class IsolatedRun(NamedTuple):
    """An `IsolatedRun` is what one isolating run returns.

    Attributes:
        loss: The loss.
        auxiliary: The loss's other outputs, flat.
        values: The computed value at each pinned and each watched value.
        cotangents: The cotangent that arrived at each of them, if any arrives.
        gradients: The gradient that arrived at each differentiated argument, by number, if any arrives.
    """

    loss: Any
    auxiliary: Sequence[Any]
    values: Mapping[ValueKey, Any]
    cotangents: Mapping[ValueKey, Any]
    gradients: Mapping[int, Any]

    def value(self, value_at: ValueAt) -> Array | None:
        """Returns the computed value at a pinned or watched value; None for any other."""
        return _at(self.values, value_at)

    def gradient(self, value_at: ValueAt) -> Array | None:
        """Returns the gradient that arrived at a pinned or watched value or at an argument; None where none arrives."""
        value = value_at.value
        if value.frame or value.equation != OPERAND:
            return _at(self.cotangents, value_at)
        found = self.gradients.get(value.position)
        return None if found is None else np.asarray(found)


def run_isolated(
    trace: Trace,
    pinned: Mapping[ValueKey, PinnedValue],
    leaves: Sequence[Any],
    *,
    watched: Collection[ValueKey] = (),
) -> IsolatedRun:
    """Runs every segment of a trace on injected values.

    Args:
        trace: A traced loss.
        pinned: What is injected, by value; none of them inside a `while` or a custom rule.
        leaves: The loss's flat arguments.
        watched: Further values of the segments, which are observed and not replaced.
    """
    loss = resolve(trace.root, trace.root.jaxpr.outvars[0])
    trace = _as_seeded(trace, pinned, loss)
    sites = tuple(trace.site_at(value) for value in dict.fromkeys((*_values(pinned, loss), *watched)))
    numbers = {site.value: number for number, site in enumerate(sites)}
    observed = [numbers[value] for value in (*pinned, *watched)]
    injected = {numbers[value]: each for value, each in pinned.items()}
    seeds = {n: jnp.asarray(each.cotangents) for n, each in injected.items() if each.cotangents is not None}
    if loss is not None and numbers[loss] not in seeds:
        seeds[numbers[loss]] = jnp.ones(sites[numbers[loss]].shape, sites[numbers[loss]].dtype)
    plan = Plan(
        sites=sites,
        gradients=frozenset(number for number in observed if has_gradient(sites[number])),
        observe=full_tensor,
        seeds=tuple(Seed(number, ()) for number in seeds),
        fed={number: each.iterations for number, each in injected.items()},
        isolated=frozenset(injected),
    )
    program, reached = observing_program(trace, plan)
    feeds = {number: jnp.asarray(each.values) for number, each in injected.items()}
    seen: Observed = jax.block_until_ready(jax.jit(program)(list(leaves), feeds, list(seeds.values())))
    return IsolatedRun(
        loss=seen.loss,
        auxiliary=seen.auxiliary,
        values={sites[number].value: seen.captured.values[number] for number in observed},
        cotangents={sites[n].value: each for n, each in seen.cotangents.items() if n in reached.sites},
        gradients={n: each for n, each in seen.gradients.items() if n in reached.arguments},
    )


def _at(tensors: Mapping[ValueKey, Any], value_at: ValueAt) -> Array | None:
    return np.asarray(tensors[value_at.value])[value_at.iteration] if value_at.value in tensors else None


def _values(pinned: Mapping[ValueKey, PinnedValue], loss: ValueKey | None) -> list[ValueKey]:
    """Returns the values at which something is injected or differentiation begins: those pinned, and the loss."""
    return [*pinned] if loss is None or loss in pinned else [*pinned, loss]


def _as_seeded(trace: Trace, pinned: Mapping[ValueKey, PinnedValue], loss: ValueKey | None) -> Trace:
    """Returns the trace with the reachability from the pinned values that have a cotangent and from the loss."""
    seeded = [value for value in _values(pinned, loss) if value == loss or pinned[value].cotangents is not None]
    reachability = reachability_from(trace.root, seeded, trace.constants_before_rules)
    arguments = tuple(map(as_reached, trace.arguments, reachability.arguments))
    return replace(trace, reachability=reachability, arguments=arguments)
