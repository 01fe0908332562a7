"""Resolving a query turns the names in it into a plan of what is run, fed, stopped and observed.

Each step is a function of the results of the steps before it:

1. `find_names` finds the names in the trace.
2. `seeds_of` returns the values that are differentiated.
3. `needed_outputs` returns which of the program's outputs are needed.
4. `as_queried` returns the trace with the liveness and reachability of the query.
5. `with_query` extends a plan of what is shown by what the query does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.instrument.plan import Plan, Seed, by_site
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.inner_values import with_inner_values
from gradscope.instrument.query.planning import has_gradient, make_plan, with_bounded_functions
from gradscope.instrument.query.query_names import (
    Fetch,
    Injected,
    QueryNames,
    find_names,
    is_argument,
    values_at,
    values_of,
)
from gradscope.instrument.query.trace_query import PrunedProgram, ResolvedQuery, TraceQuery
from gradscope.instrument.taps import Observer, full_tensor
from gradscope.naming import printable
from gradscope.tracing.dataflow.backward import Marks
from gradscope.tracing.dataflow.liveness import Need, needed_for
from gradscope.tracing.dataflow.reachability import Reach, reachability_by_iteration
from gradscope.tracing.jaxpr.frames import resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.fallback_scopes import operation_name
from gradscope.tracing.layers.sites import Site, find_sites
from gradscope.tracing.leaves import Leaf, as_reached
from gradscope.tracing.lookup.named_values import NamedValue, NamedValues, throughout
from gradscope.tracing.tracer import Trace


def resolve_query(trace: Trace, spec: CaptureSpec, query: TraceQuery, observe: Observer = full_tensor) -> ResolvedQuery:
    """Resolves a query about a trace that was made with operations.

    Raises:
        UsageError: A name is unknown, a tensor does not fit, a value cannot be differentiated, fed or stopped, terms
            are selected in addition to what is fetched, or gradients of each example, which are the loss's own.
    """
    spec = with_inner_values(trace, spec)
    if not query:
        plan = with_bounded_functions(make_plan(trace, spec, observe), trace, spec)
        return ResolvedQuery(trace=trace, plan=plan, spec=spec)
    _require_compatible(spec, query)
    names = find_names(NamedValues(trace, trace.layers), query)
    seeds = seeds_of(trace, names)
    outputs = needed_outputs(trace, names, seeds)
    trace = as_queried(trace, names, seeds, outputs)
    if names.fetches:
        spec = replace(spec, keys=frozenset(_key(trace, fetch) for fetch in names.fetches))
        trace = replace(trace, arguments=tuple(_as_selected(leaf, spec) for leaf in trace.arguments))
    shown = make_plan(trace, spec, observe)
    plan = with_query(shown, trace, names, seeds)
    if naming.ACTIVATION_GRAD in spec.families:
        added = range(len(shown.sites), len(plan.sites))
        plan = replace(plan, gradients=plan.gradients.union(n for n in added if has_gradient(plan.sites[n])))
    used = {frame.key: trace.liveness.used(frame) for frame in trace.root.walk()}
    return ResolvedQuery(
        trace=trace,
        plan=replace(plan, used=used, outputs=tuple(outputs)),
        spec=spec,
        feeds=_fed_sites(plan, names.fed),
        arguments={
            each.value.position: _fitting(each, trace.site_at(each.value))
            for each in names.fed
            if each.value is not None and is_argument(each.value)
        },
        cotangents=initial_gradients(plan, seeds),
        fragment=_fragment(trace),
    )


def _require_compatible(spec: CaptureSpec, query: TraceQuery) -> None:
    if spec.per_example:
        raise UsageError(
            "gradients of each example are those of the loss as it is, and something else is requested",
            hint="leave out what is differentiated, stopped, fed or fetched, or the gradients of each example",
        )
    if query.fetches and (spec.terms or spec.operands):
        raise UsageError(
            "a fetch names all that is shown, and what flows back from single uses has no name to fetch",
            hint="leave out the fetch, or the terms and operations' inputs",
        )


def seeds_of(trace: Trace, names: QueryNames) -> list[Injected]:
    """Returns what is differentiated: the named values or the loss, and values with an injected gradient."""
    if names.fetches and not any(fetch.gradient for fetch in names.fetches):
        return []
    return [*(names.of or _loss(trace, names)), *names.gradient_fed]


def _loss(trace: Trace, names: QueryNames) -> list[Injected]:
    """Returns the loss as a seed; nothing where injected gradients cut all of its paths to the arguments."""
    loss = Injected(trace.outputs[0], NamedValue(resolve(trace.root, trace.root.jaxpr.outvars[0])), None)
    if not names.gradient_fed:
        return [loss]
    cuts = _cuts(names) + values_at(names.gradient_fed)
    reach = reachability_by_iteration(trace.root, values_at([loss]), cuts).arguments
    reached = (arrives is Reach.GRADIENT for arrives in reach)
    arguments = zip(trace.arguments, reached, strict=True)
    return [loss] if any(leaf.differentiated and is_reached for leaf, is_reached in arguments) else []


def _cuts(names: QueryNames) -> list[ValueAt]:
    """Returns the values that no gradient passes, which are stopped or fed."""
    return values_at([*names.stops, *names.fed])


def needed_outputs(trace: Trace, names: QueryNames, seeds: Sequence[Injected]) -> list[bool]:
    """Returns for each output of the traced function whether the query needs it."""
    atoms = trace.root.jaxpr.outvars
    if not names.fetches and not (names.gradient_fed and len(seeds) == len(names.gradient_fed)):
        return [True] * len(atoms)
    values = {fetch.named.value for fetch in names.fetches if not fetch.gradient}
    return [resolve(trace.root, atom) in values for atom in atoms]


def as_queried(trace: Trace, names: QueryNames, seeds: Sequence[Injected], outputs: Sequence[bool]) -> Trace:
    """Returns the trace with the liveness of what the query needs, and the reachability from what it differentiates.

    Args:
        trace: The trace.
        names: The query's names.
        seeds: The values that are differentiated.
        outputs: For each output, whether it is needed.
    """
    fetched = (fetch for fetch in names.fetches if not fetch.gradient)
    fed = throughout(trace.root, [each.named for each in names.fed])
    needs = Marks(seeds=dict.fromkeys(values_of([*fetched, *seeds]), Need.OUTPUT), cuts=fed)
    liveness = needed_for(trace.root, outputs, needs)
    # What is fetched is requested by name, also where the program itself does not differentiate it.
    constants = () if names.fetches else trace.constants_before_rules
    reachability = reachability_by_iteration(trace.root, values_at(seeds), _cuts(names), constants)
    return replace(
        trace,
        liveness=liveness,
        reachability=reachability,
        arguments=tuple(map(as_reached, trace.arguments, reachability.arguments)),
        sites=tuple(find_sites(trace.root, trace.layers, liveness, reachability)),
    )


def with_query(plan: Plan, trace: Trace, names: QueryNames, seeds: Sequence[Injected]) -> Plan:
    """Returns a plan of what is shown, extended by the sites of a query and what is done there.

    Args:
        plan: The plan.
        trace: The trace as queried.
        names: The query's names.
        seeds: What is differentiated.

    Raises:
        UsageError: Nothing can be done at one of the values.
    """
    fed = [each for each in names.fed if each.value is not None and not is_argument(each.value)]
    known = {site.value: site for site in (*trace.sites, *plan.sites)}
    concerned = [known.get(value) or trace.site_at(value) for value in values_of([*seeds, *fed, *names.stops])]
    present = {site.value for site in plan.sites}
    sites = (*plan.sites, *(site for site in map(_require_within_reach, concerned) if site.value not in present))
    numbers = {site.value: number for number, site in enumerate(sites)}

    def iterations_of(named: Iterable[NamedValue]) -> Any:
        return by_site((numbers[each.value], each.iteration) for each in named if each.value is not None)

    return replace(
        plan,
        sites=sites,
        seeds=tuple(Seed(numbers[each.value], each.named.iteration) for each in seeds if each.value is not None),
        fed=iterations_of(each.named for each in fed),
        stopped=iterations_of(names.stops),
        gradient_fed=iterations_of(each.named for each in names.gradient_fed),
    )


def _require_within_reach(site: Site) -> Site:
    """Refuses a site at which a value cannot be fed, stopped or differentiated."""
    if site.bypassed or any(loop.length is None for loop in site.loops):
        raise UsageError(
            f"{site.primitive} at {site.source} is inside a custom rule, a linear solve or a while loop,"
            " which run as they are",
            hint="name a value that goes in or comes out",
        )
    return site


def initial_gradients(plan: Plan, seeds: Sequence[Injected]) -> tuple[Any, ...]:
    """Returns the initial gradient of each seed that is no constant, in its shape and dtype.

    Raises:
        UsageError: One has another shape, or a seed cannot be differentiated.
    """
    sites = {site.value: site for site in plan.sites}
    return tuple(_initial(seed, sites[seed.value]) for seed in seeds if seed.value is not None)


def _initial(seed: Injected, site: Site) -> Any:
    if not site.differentiable:
        raise UsageError(
            f"{printable(seed.name)} is {site.dtype} and cannot be differentiated",
            hint="only real and complex floating-point values have gradients",
        )
    if seed.tensor is None:
        return jnp.ones(site.shape, site.dtype)
    injected = jnp.asarray(seed.tensor)
    if injected.shape != site.shape:
        raise UsageError(
            f"the initial gradient of {printable(seed.name)} has shape {injected.shape}, expected {site.shape}",
            hint=_LISTED if isinstance(seed.tensor, list | tuple) else _SHAPED,
        )
    return injected.astype(site.dtype)


_SHAPED: Final = "an initial gradient has the shape of what is differentiated"
#: Where `ys` is one name and `grad_ys` a list.
_LISTED: Final = "a list is one array here: for a list of initial gradients, grad_ys, give a list of names, ys"


def _fitting(fed: Injected, site: Site) -> Any:
    """Returns the tensor for a value, in the value's dtype."""
    injected = np.asarray(fed.tensor)
    if injected.shape != site.shape:
        raise UsageError(
            f"what is given for {printable(fed.name)} has shape {list(injected.shape)}, expected {list(site.shape)}",
            hint="a value is replaced by one of its own shape",
        )
    return injected.astype(site.dtype)


def _fed_sites(plan: Plan, fed: Sequence[Injected]) -> dict[int, Any]:
    """Returns the injected tensors by site, with an axis for each loop around the site."""
    numbers = {site.value: number for number, site in enumerate(plan.sites)}
    feeds: dict[int, Any] = {}
    for each in fed:
        if each.value is None or is_argument(each.value):
            continue
        number = numbers[each.value]
        shape = plan.value(number)
        tensor = feeds.setdefault(number, np.zeros(shape.shape, shape.dtype))
        tensor[each.named.iteration] = _fitting(each, plan.sites[number])
    return feeds


def _key(trace: Trace, fetch: Fetch) -> str:
    """Returns the key under which a fetched value is shown."""
    value, iteration = fetch.named
    if value is not None and is_argument(value):
        leaf = trace.arguments[value.position]
        family = naming.gradient_family(leaf.family) if fetch.gradient else leaf.family
        return naming.key_of(family or leaf.family, leaf.name)
    names = next((site.names for site in trace.sites if site.value == value), ())
    shown = [str(name.at(iteration)) for name in names]
    if not shown:
        raise UsageError(f"{printable(fetch.name)} is a constant", hint="nothing has to be run for it")
    family = naming.ACTIVATION_GRAD if fetch.gradient else naming.ACTIVATION
    return naming.key_of(family, fetch.name if fetch.name in shown else shown[0])


def _as_selected(leaf: Leaf, spec: CaptureSpec) -> Leaf:
    """Returns the leaf, differentiated only if its gradient is selected."""
    family = naming.gradient_family(leaf.family)
    selected = family is not None and spec.selects(family, leaf.name)
    return replace(leaf, differentiated=leaf.differentiated and selected)


def _fragment(trace: Trace) -> PrunedProgram:
    """Returns the part of the program that is run."""
    operations = [
        number in trace.liveness.used(frame)
        for frame in trace.root.walk()
        if not frame.opaque
        for number, equation in enumerate(frame.jaxpr.eqns)
        if operation_name(equation) is not None
    ]
    needed = trace.liveness.arguments
    leaves = zip(trace.arguments, needed, strict=True)
    inputs = tuple(leaf.name for leaf, is_needed in leaves if is_needed and leaf.family == naming.INPUT)
    return PrunedProgram(sum(operations), len(operations), needed, inputs)
