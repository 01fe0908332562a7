"""Answering an inquiry: the trace seen from what it asks, and the plan of what is run, fed, stopped and observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.instrument.plan import Plan, Seed, by_site
from gradscope.instrument.query.capture_spec import Wanted
from gradscope.instrument.query.planning import has_gradient, make_plan
from gradscope.instrument.query.trace_query import GRADIENT, Answer, Fragment, Inquiry
from gradscope.instrument.taps import Observer, whole_tensor
from gradscope.naming import printable
from gradscope.tracing.dataflow.backward import Marks
from gradscope.tracing.dataflow.liveness import Need, needed_for
from gradscope.tracing.dataflow.reachability import Reach, reachability_from
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import operation_name
from gradscope.tracing.layers.sites import Site, find_sites
from gradscope.tracing.lookup.named_values import NamedValue, NamedValues, throughout
from gradscope.tracing.tracer import Leaf, Trace, as_reached


def answer(trace: Trace, wanted: Wanted, inquiry: Inquiry, observe: Observer = whole_tensor) -> Answer:
    """How to answer an inquiry about a trace that was made with operations.

    Raises:
        UsageError: A name is unknown, a tensor does not fit, a value cannot be differentiated, fed or stopped, terms
            are wanted beside what is fetched, or gradients of each example, whose question is the loss's own.
    """
    if not inquiry:
        return Answer(trace=trace, plan=make_plan(trace, wanted, observe), wanted=wanted)
    if wanted.per_example:
        raise UsageError(
            "gradients of each example are those of the loss as it is, and something else is asked",
            hint="leave out what is differentiated, stopped, fed or fetched, or the gradients of each example",
        )
    if inquiry.fetches and (wanted.terms or wanted.operands):
        raise UsageError(
            "a fetch names all that is shown, and what flows back from single uses has no name to fetch",
            hint="leave out the fetch, or the terms and operations' inputs",
        )
    return _Answering(trace, inquiry).answer(wanted, observe)


class _Fed(NamedTuple):
    """A value and what is given for it."""

    name: str
    named: NamedValue
    tensor: Any


class _Answering:
    """One inquiry about one trace."""

    def __init__(self, trace: Trace, inquiry: Inquiry) -> None:
        self._trace = trace
        self._inquiry = inquiry
        known = NamedValues(trace, trace.layers)
        self._known = known
        self._stops = [known.find(name) for name in inquiry.stops]
        given = [(name.removeprefix(GRADIENT), name.startswith(GRADIENT), each) for name, each in inquiry.feeds.items()]
        self._values = [_Fed(name, known.find(name), each) for name, gradient, each in given if not gradient]
        self._severed = [_Fed(name, known.find(name), each) for name, gradient, each in given if gradient]
        ones = inquiry.cotangents or (None,) * len(inquiry.of)
        self._of = [_Fed(name, known.find(name), each) for name, each in zip(inquiry.of, ones, strict=True)]
        self._fetches = [_fetch(name, known) for name in inquiry.fetches]
        gradients = not self._fetches or any(fetch.gradient for fetch in self._fetches)
        self._seeds = [*(self._of or self._loss()), *self._severed] if gradients else []
        liveness = needed_for(trace.root, self._outputs(), self._needs())
        reachability = reachability_from(trace.root, _keys(seed.named for seed in self._seeds), self._cuts())
        self._trace = replace(trace, liveness=liveness, reachability=reachability)

    def _loss(self) -> list[_Fed]:
        """The loss as what is differentiated; nothing where fed gradients cut all its ways to what is asked for."""
        loss = _Fed(
            self._trace.outputs[0], NamedValue(resolve(self._trace.root, self._trace.root.jaxpr.outvars[0])), None
        )
        if not self._severed:
            return [loss]
        root = self._trace.root
        cuts = self._cuts() | throughout(root, [each.named for each in self._severed])
        reach = reachability_from(root, _keys([loss.named]), cuts).arguments
        differentiated = (leaf.differentiated for leaf in self._trace.arguments)
        return [loss] if any(r is Reach.GRADIENT for r, d in zip(reach, differentiated, strict=True) if d) else []

    def _cuts(self) -> frozenset[ValueKey]:
        root = self._trace.root
        fed = [each.named for each in self._values]
        return throughout(root, self._stops) | throughout(root, fed)

    def _partial(self) -> bool:
        """Whether only a part of what the loss function returns is asked for."""
        return bool(self._fetches) or (bool(self._severed) and len(self._seeds) == len(self._severed))

    def _outputs(self) -> list[bool]:
        outputs = self._trace.root.jaxpr.outvars
        if not self._partial():
            return [True] * len(outputs)
        values = {fetch.named.value for fetch in self._fetches if not fetch.gradient}
        return [resolve(self._trace.root, atom) in values for atom in outputs]

    def _needs(self) -> Marks:
        fetched = [fetch.named for fetch in self._fetches if not fetch.gradient]
        seeds = [seed.named for seed in self._seeds]
        fed = throughout(self._trace.root, [each.named for each in self._values])
        return Marks(seeds=dict.fromkeys(_keys([*fetched, *seeds]), Need.OUTPUT), cuts=fed)

    def answer(self, wanted: Wanted, observe: Observer) -> Answer:
        """The trace under this inquiry, and the plan for it."""
        reached = map(as_reached, self._trace.arguments, self._trace.reachability.arguments)
        sites = tuple(find_sites(self._trace.root, self._trace.layers, self._trace.liveness, self._trace.reachability))
        trace = replace(self._trace, arguments=tuple(reached), sites=sites)
        if self._fetches:
            wanted = replace(wanted, keys=frozenset(self._key(trace, fetch) for fetch in self._fetches))
            trace = replace(trace, arguments=tuple(_asked_for(leaf, wanted) for leaf in trace.arguments))
        plan = self._completed(make_plan(trace, wanted, observe), trace.sites, wanted)
        numbers = {site.value: number for number, site in enumerate(plan.sites)}
        return Answer(
            trace=trace,
            plan=plan,
            wanted=wanted,
            feeds=self._fed_sites(plan, numbers),
            arguments={
                each.named.value.position: _fitting(each, self._trace.site_at(each.named.value))
                for each in self._values
                if each.named.value is not None and _is_argument(each.named.value)
            },
            cotangents=tuple(_initial(seed, plan.sites[numbers[seed.named.value]]) for seed in self._seeds
                             if seed.named.value is not None),
            fragment=self._fragment(),
        )  # fmt: skip

    def _completed(self, plan: Plan, sites: Sequence[Site], wanted: Wanted) -> Plan:
        """The plan with the sites that the inquiry is about, and what is to be done there."""
        fed = [each for each in self._values if each.named.value is not None and not _is_argument(each.named.value)]
        places = [*(each.named for each in (*self._seeds, *fed)), *self._stops]
        present = {site.value for site in plan.sites}
        known = {site.value: site for site in sites}
        further = [known.get(value) or self._trace.site_at(value) for value in _keys(places) if value not in present]
        sites = (*plan.sites, *map(_require_within_reach, further))
        numbers = {site.value: number for number, site in enumerate(sites)}
        fed_and_shown = (number for number in range(len(plan.sites), len(sites)) if has_gradient(sites[number]))
        gradients = fed_and_shown if naming.ACTIVATION_GRAD in wanted.families else ()

        def turns(named: Iterable[NamedValue]) -> Any:
            return by_site((numbers[each.value], each.turn) for each in named if each.value is not None)

        return replace(
            plan,
            sites=sites,
            gradients=plan.gradients.union(gradients),
            seeds=tuple(Seed(numbers[s.named.value], s.named.turn) for s in self._seeds if s.named.value is not None),
            fed=turns(each.named for each in fed),
            stopped=turns(self._stops),
            severed=turns(each.named for each in self._severed),
            used={frame.key: self._trace.liveness.used(frame) for frame in self._trace.root.walk()},
            outputs=tuple(self._outputs()),
        )

    def _fed_sites(self, plan: Plan, numbers: Mapping[ValueKey, int]) -> dict[int, Any]:
        feeds: dict[int, Any] = {}
        for each in self._values:
            if each.named.value is None or _is_argument(each.named.value):
                continue
            number = numbers[each.named.value]
            shape = plan.value(number)
            tensor = feeds.setdefault(number, np.zeros(shape.shape, shape.dtype))
            tensor[each.named.turn] = _fitting(each, plan.sites[number])
        return feeds

    def _key(self, trace: Trace, fetch: _Fetch) -> str:
        """The key under which a fetched value is shown."""
        value, turn = fetch.named
        if value is not None and _is_argument(value):
            leaf = trace.arguments[value.position]
            family = naming.gradient_family(leaf.family) if fetch.gradient else leaf.family
            return naming.key_of(family or leaf.family, leaf.name)
        names = next((site.names for site in trace.sites if site.value == value), ())
        shown = [str(name.at(turn)) for name in names]
        if not shown:
            raise UsageError(f"{printable(fetch.name)} is a constant", hint="nothing has to be run for it")
        family = naming.ACTIVATION_GRAD if fetch.gradient else naming.ACTIVATION
        return naming.key_of(family, fetch.name if fetch.name in shown else shown[0])

    def _fragment(self) -> Fragment:
        operations = [
            number in self._trace.liveness.used(frame)
            for frame in self._trace.root.walk()
            if not frame.opaque
            for number, equation in enumerate(frame.jaxpr.eqns)
            if operation_name(equation) is not None
        ]
        leaves = zip(self._trace.arguments, self._trace.liveness.arguments, strict=True)
        inputs = tuple(leaf.name for leaf, needed in leaves if needed and leaf.family == naming.INPUT)
        return Fragment(sum(operations), len(operations), self._trace.liveness.arguments, inputs)


class _Fetch(NamedTuple):
    """A value asked for, or its gradient."""

    name: str
    named: NamedValue
    gradient: bool


def _fetch(name: str, known: NamedValues) -> _Fetch:
    if name.startswith(GRADIENT):
        own = name.removeprefix(GRADIENT)
        return _Fetch(own, known.find(own), gradient=True)
    family, _, own = name.partition("/")
    if naming.is_gradient(family):
        of_value = (
            own if family == naming.ACTIVATION_GRAD else naming.key_of(naming.value_family(family) or family, own)
        )
        return _Fetch(own, known.find(of_value), gradient=True)
    return _Fetch(name.removeprefix(f"{naming.ACTIVATION}/"), known.find(name), gradient=False)


def _asked_for(leaf: Leaf, wanted: Wanted) -> Leaf:
    """The leaf, differentiated only if its gradient is asked for."""
    family = naming.gradient_family(leaf.family)
    asked = family is not None and wanted.wants(family, leaf.name)
    return replace(leaf, differentiated=leaf.differentiated and asked)


def _keys(values: Iterable[NamedValue]) -> list[ValueKey]:
    return list(dict.fromkeys(named.value for named in values if named.value is not None))


def _is_argument(value: ValueKey) -> bool:
    return not value.frame and value.equation == OPERAND


def _require_within_reach(site: Site) -> Site:
    """A site that something can be done at."""
    if site.opaque or any(loop.length is None for loop in site.loops):
        raise UsageError(
            f"{site.primitive} at {site.source} lies inside a custom rule or a while loop, which run as they stand",
            hint="name a value that goes in or comes out",
        )
    return site


def _fitting(fed: _Fed, site: Site) -> Any:
    """What is given for a value, in its dtype.

    Raises:
        UsageError: It has another shape.
    """
    given = np.asarray(fed.tensor)
    if given.shape != site.shape:
        raise UsageError(
            f"what is given for {printable(fed.name)} has shape {list(given.shape)}, expected {list(site.shape)}",
            hint="a value is replaced by one of its own shape",
        )
    return given.astype(site.dtype)


def _initial(seed: _Fed, site: Site) -> Any:
    """The initial gradient of what is differentiated."""
    if not site.differentiable:
        raise UsageError(
            f"{printable(seed.name)} is {site.dtype} and cannot be differentiated",
            hint="only real and complex floating-point values have gradients",
        )
    return jnp.ones(site.shape, site.dtype) if seed.tensor is None else _fitting(seed, site)
