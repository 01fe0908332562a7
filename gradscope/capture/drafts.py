"""Drafts: what a run observed, cut into one piece per tensor, its statistics still to be computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capture.order import ExecutionOrder, Iteration
from gradscope.capture.run import Run, Turn, turns_of
from gradscope.dump.record import Reason, Record, SiteFacts
from gradscope.instrument.planning import has_gradient
from gradscope.instrument.taps import whole_tensor
from gradscope.tracing.frames import OPERAND, ValueKey
from gradscope.tracing.layers import LayerCall
from gradscope.tracing.sites import Site
from gradscope.tracing.tracer import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One tensor of a run, or the reason why there is none.

    Attributes:
        subject: The value and the nominal turn it belongs to, by which a layer finds what went into it.
        family: Its family.
        fetch: Gives the observation on the host; None where there is none.
        records: What is to be written of it, without arrays and statistics: first its own, then its aliases. Empty for a
            value that is observed only to measure a layer's input.
    """

    subject: tuple[ValueKey, Iteration]
    family: str
    fetch: Callable[[], np.ndarray] | None
    records: tuple[Record, ...]


def drafts(run: Run, order: ExecutionOrder) -> Iterator[Draft]:
    """Every tensor of a run: arguments and their gradients, values and theirs in execution order, auxiliary outputs."""
    owners = _owners(run.trace.layers)
    for number, leaf in enumerate(run.trace.arguments):
        yield from _argument_drafts(run, order, number, owners.get(leaf.name) if leaf.family != naming.INPUT else None)
    turns = [(number, turn) for number in range(len(run.plan.sites)) for turn in turns_of(run, number)]
    ranked = sorted(turns, key=lambda at: _rank(order, run.plan.sites[at[0]], at[1]))
    for number, turn in ranked:
        yield from _site_drafts(run, order, number, turn)
    last = order.rank_after_all
    for number, (leaf, value) in enumerate(zip(run.trace.auxiliary, run.observed.auxiliary, strict=True)):
        subject = (ValueKey((), len(run.trace.jaxpr.eqns), number), ())
        yield from _leaf_drafts(run, subject, leaf.family, leaf, SiteFacts(index=last), _fetching(value))


def _owners(layers: tuple[LayerCall, ...]) -> dict[str, LayerCall]:
    """For each parameter, the innermost layer that uses it, the first in execution order."""
    users = [(layer, name) for layer in layers for name in layer.params]
    passed_on = {(id(layer.parent), name) for layer, name in users}
    owners: dict[str, LayerCall] = {}
    for layer, name in users:
        if (id(layer), name) not in passed_on:
            owners.setdefault(name, layer)
    return owners


def _argument_drafts(run: Run, order: ExecutionOrder, number: int, owner: LayerCall | None) -> Iterator[Draft]:
    leaf = run.trace.arguments[number]
    subject = (ValueKey((), OPERAND, number), ())
    site = SiteFacts(index=0)
    if owner is not None:
        first = (0,) * len(owner.frame.loops)
        rank = order.rank(owner.frame.loops, owner.order, first)
        site = SiteFacts(index=rank, layer=str(owner.path.at(first)), source=owner.source)
    yield from _leaf_drafts(run, subject, leaf.family, leaf, site, _fetching(run.arguments[number]))
    gradient = naming.gradient_family(leaf.family)
    if gradient is None:
        return
    if not leaf.differentiated:
        inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
        yield from _leaf_drafts(run, subject, gradient, leaf, site, "filtered" if inexact else "non-differentiable")
    elif number not in run.reached.arguments:
        yield from _leaf_drafts(run, subject, gradient, leaf, site, "disconnected")
    else:
        yield from _leaf_drafts(run, subject, gradient, leaf, site, _fetching(run.observed.gradients[number]))


def _leaf_drafts(
    run: Run,
    subject: tuple[ValueKey, Iteration],
    family: str,
    leaf: Leaf,
    site: SiteFacts,
    source: Callable[[], np.ndarray] | Reason,
) -> Iterator[Draft]:
    shown = run.wanted.wants(family, leaf.name)
    if shown or family in (naming.INPUT, naming.INPUT_GRAD):
        yield _draft(subject, _record(family, leaf.name, leaf.shape, leaf.dtype, site), source, shown=shown)


def _site_drafts(run: Run, order: ExecutionOrder, number: int, turn: Turn) -> Iterator[Draft]:
    site = run.plan.sites[number]
    subject = (site.value, turn.nominal)
    facts = SiteFacts(
        index=_rank(order, site, turn),
        source=site.source,
        primitive=site.primitive,
        layer=str(site.names[0].path.at(turn.iteration)) if site.names else None,
        iteration=turn.iteration,
    )
    value = run.observed.captured.values[number]
    yield _named(run, site, subject, naming.ACTIVATION, facts, _fetching(value, turn.at) if turn.executed else "not-executed")
    yield _named(run, site, subject, naming.ACTIVATION_GRAD, facts, _cotangent(run, number, turn))


def _cotangent(run: Run, number: int, turn: Turn) -> Callable[[], np.ndarray] | Reason:
    """The gradient with respect to a site in one turn, or why there is none."""
    site = run.plan.sites[number]
    if not turn.executed:
        return "not-executed"
    if not site.differentiable:
        return "non-differentiable"
    if site.forward_only:
        return "forward-only"
    if number in run.reached.sites:
        return _fetching(run.observed.cotangents[number], turn.at)
    return "filtered" if has_gradient(site) and number not in run.plan.gradients else "disconnected"


def _named(
    run: Run,
    site: Site,
    subject: tuple[ValueKey, Iteration],
    family: str,
    facts: SiteFacts,
    source: Callable[[], np.ndarray] | Reason,
) -> Draft:
    """The draft of one site in one turn, under every name that is wanted."""
    names = [str(n.at(facts.iteration)) for n in site.names if run.wanted.wants_layer(family, n, facts.iteration)]
    record = _record(family, names[0] if names else "", site.shape, site.dtype, facts)
    draft = _draft(subject, record, source, shown=bool(names))
    own = naming.key_of(family, record.name)
    aliases = [replace(record, name=name, alias_of=own) for name in names[1:]]
    return replace(draft, records=(*draft.records, *aliases))


def _record(family: str, name: str, shape: tuple[int, ...], dtype: Any, site: SiteFacts) -> Record:
    return Record(family=family, name=name, shape=shape, dtype=str(dtype), array=None, stats={}, site=site)


def _draft(
    subject: tuple[ValueKey, Iteration], record: Record, source: Callable[[], np.ndarray] | Reason, *, shown: bool
) -> Draft:
    if isinstance(source, str):
        record = replace(record, absent=source)
    fetch = None if isinstance(source, str) else source
    return Draft(subject=subject, family=record.family, fetch=fetch, records=(record,) if shown else ())


def _rank(order: ExecutionOrder, site: Site, turn: Turn) -> int:
    return order.rank(site.loops, site.order, turn.nominal)


def _fetching(value: Any, at: tuple[int, ...] = ()) -> Callable[[], np.ndarray]:
    def fetch() -> np.ndarray:
        return np.asarray(whole_tensor(value))[at]

    return fetch
