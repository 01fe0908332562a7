"""Pending tensors are the tensors that a run observed, one by one, before their statistics are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.execution.observation import Observation
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.run import Run, SiteIteration, site_iterations
from gradscope.dump.record import Reason, Record, SiteFacts
from gradscope.instrument.query.planning import has_gradient
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, source_in
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.uses import Use, UseKey
from gradscope.tracing.leaves import Leaf


class TensorOrigin(NamedTuple):
    """A `TensorOrigin` states which value or use a tensor is of, its nominal iteration, and where that is made."""

    value: ValueKey | UseKey
    iteration: IterationIndex
    facts: SiteFacts


#: An observation, or why there is none.
Source: TypeAlias = "Observation | Reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTensor:
    """A `PendingTensor` is one tensor of a run before it is measured, or the reason why there is none.

    Attributes:
        origin: The value it belongs to, by which a layer finds what went into it.
        family: Its family.
        observation: What was observed; None where nothing was.
        records: Its records, without arrays and statistics: first its own, then its aliases. Empty for a value that is
            observed only to measure a layer's input.
    """

    origin: TensorOrigin
    family: str
    observation: Observation | None
    records: tuple[Record, ...]


def pending_tensors(run: Run, order: ExecutionOrder) -> Iterator[PendingTensor]:
    """Yields every tensor of a run: arguments by first use, values in execution order, gradients with both, outputs."""
    origins = argument_origins(run, order)
    arguments = [] if run.sites_only else sorted(range(len(origins)), key=lambda at: origins[at].facts.index)
    for number in arguments:
        yield from _pending_argument(run, number, origins[number])
    iterations = [(number, iteration) for number in run.plan.shown for iteration in site_iterations(run, number)]
    for number, iteration in sorted(iterations, key=lambda at: _rank(order, run.plan.sites[at[0]], at[1])):
        yield from _pending_site(run, order, number, iteration)
    auxiliary = [] if run.sites_only else zip(run.trace.auxiliary, run.observed.auxiliary, strict=True)
    for number, (leaf, value) in enumerate(auxiliary):
        key = ValueKey((), len(run.trace.jaxpr.eqns), number)
        origin = TensorOrigin(key, (), SiteFacts(index=order.rank_after_all))
        source: Source = "eliminated" if value is None else Observation(value=value)
        yield from _pending_leaf(run, leaf.family, leaf, origin, source)


def argument_origins(run: Run, order: ExecutionOrder) -> list[TensorOrigin]:
    """Returns for each argument where it is first used, which is where a parameter is listed."""
    owners = _owners(run.trace.layers)
    origins: list[TensorOrigin] = []
    for number, leaf in enumerate(run.trace.arguments):
        owner = owners.get(leaf.name) if leaf.family == naming.PARAM else None
        facts = SiteFacts(index=0)
        if owner is not None:
            first = (0,) * len(owner.frame.loops)
            rank = order.rank(owner.frame.loops, owner.order, first)
            use = owner.frame.jaxpr.eqns[owner.params[leaf.name]]
            source = source_in(owner.frame, use) or owner.source
            facts = SiteFacts(index=rank, layer=str(owner.path.at(first)), source=source)
        origins.append(TensorOrigin(ValueKey((), OPERAND, number), (), facts))
    return origins


def _owners(layers: tuple[LayerCall, ...]) -> dict[str, LayerCall]:
    """Returns for each parameter the innermost layer that runs and uses it, the first in execution order."""
    run = (layer for layer in layers if all(loop.length != 0 for loop in layer.frame.loops))
    users = [(layer, name) for layer in run for name in layer.params]
    passed_on = {(id(layer.parent), name) for layer, name in users}
    owners: dict[str, LayerCall] = {}
    for layer, name in users:
        if (id(layer), name) not in passed_on:
            owners.setdefault(name, layer)
    return owners


def _pending_argument(run: Run, number: int, origin: TensorOrigin) -> Iterator[PendingTensor]:
    leaf = run.trace.arguments[number]
    yield from _pending_leaf(run, leaf.family, leaf, origin, _argument(run, number))
    gradient = naming.gradient_family(leaf.family)
    if gradient is not None:
        yield from _pending_leaf(run, gradient, leaf, origin, gradient_of_argument(run, number))


def _argument(run: Run, number: int) -> Source:
    """Returns an argument, or why it is not there."""
    value = run.arguments[number]
    if value is None:
        return "filtered" if run.plan.used is None else "eliminated"
    return Observation(value=value)


def gradient_of_argument(run: Run, number: int) -> Source:
    """Returns the gradient with respect to an argument, or why there is none."""
    leaf = run.trace.arguments[number]
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return "non-differentiable"
    if leaf.forward_only:
        return "forward-only"
    if not leaf.differentiated:
        variable = FrameVariable(run.trace.root, run.trace.root.jaxpr.invars[number])
        return "disconnected" if variable in run.trace.constants_before_rules else "filtered"
    if number not in run.reached.arguments:
        return "disconnected"
    if number not in run.observed.gradients:  # a step observes only what is selected
        return "filtered"
    return Observation(value=run.observed.gradients[number])


def _pending_leaf(run: Run, family: str, leaf: Leaf, origin: TensorOrigin, source: Source) -> Iterator[PendingTensor]:
    shown = run.spec.selects(family, leaf.name)
    if shown or family in (naming.INPUT, naming.INPUT_GRAD):
        record = record_of(family, leaf.name, leaf, origin)
        yield pending_of(record, origin, source, shown=shown)


def _pending_site(run: Run, order: ExecutionOrder, number: int, iteration: SiteIteration) -> Iterator[PendingTensor]:
    site = run.plan.sites[number]
    name = site.names[0] if site.names else None
    layer = None if name is None else name.layer
    facts = SiteFacts(
        index=_rank(order, site, iteration),
        source=site.source,
        primitive=site.primitive,
        layer=str(layer.at(iteration.iteration)) if layer is not None else None,
        iteration=iteration.iteration,
        operation=name is not None and name.operation,
    )
    origin = TensorOrigin(site.value, iteration.nominal, facts)
    captured = run.observed.captured.values[number]
    value = Observation(value=captured, at=iteration.at) if iteration.executed else "not-executed"
    yield _named(run, site, naming.ACTIVATION, origin, value)
    yield _named(run, site, naming.ACTIVATION_GRAD, origin, _cotangent(run, number, iteration))


def _cotangent(run: Run, number: int, iteration: SiteIteration) -> Source:
    """Returns the gradient with respect to a site in one iteration, or why there is none."""
    site = run.plan.sites[number]
    if not iteration.executed:
        return "not-executed"
    if not site.differentiable:
        return "non-differentiable"
    if site.forward_only:
        return "forward-only"
    if number in run.reached.sites and _arrives(run, ValueAt(site.value, iteration.nominal)):
        return Observation(value=run.observed.cotangents[number], at=iteration.at)
    if site.beside:
        return "opaque"
    return "filtered" if has_gradient(site) and number not in run.plan.gradients else "disconnected"


def _arrives(run: Run, value_at: ValueAt) -> bool:
    """Returns whether what is differentiated depends on a value of one iteration, where not all of the loss is."""
    return run.plan.is_of_loss or run.trace.reaches(value_at)


def _named(run: Run, site: Site, family: str, origin: TensorOrigin, source: Source) -> PendingTensor:
    """Returns the tensor of one site in one iteration, under every name that is selected."""
    iteration = origin.facts.iteration
    names = [
        str(name.at(iteration)) for name in site.names if run.spec.selects_recorded(family, name, iteration, site.loops)
    ]
    record = record_of(family, names[0] if names else "", site, origin)
    pending = pending_of(record, origin, source, shown=bool(names))
    own = naming.key_of(family, record.name)
    aliases = [replace(record, name=name, alias_of=own) for name in names[1:]]
    return replace(pending, records=(*pending.records, *aliases))


def record_of(family: str, name: str, value: Leaf | Site | Use, origin: TensorOrigin) -> Record:
    """Returns the record of a tensor, still without statistics."""
    return Record(
        family=family, name=name, shape=value.shape, dtype=str(value.dtype), array=None, stats={}, site=origin.facts
    )


def pending_of(record: Record, origin: TensorOrigin, source: Source, *, shown: bool = True) -> PendingTensor:
    """Returns the pending tensor of a record and of what was observed for it, or of why nothing was."""
    if isinstance(source, str):
        record = replace(record, absent=source)
    observation = None if isinstance(source, str) else source
    return PendingTensor(
        origin=origin, family=record.family, observation=observation, records=(record,) if shown else ()
    )


def _rank(order: ExecutionOrder, site: Site, iteration: SiteIteration) -> int:
    return order.rank(site.loops, site.order, iteration.nominal)
