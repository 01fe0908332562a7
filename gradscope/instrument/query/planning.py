"""Planning turns a capture spec into the plan of the sites that must be observed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradscope import naming
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.terms import Terms, name_of
from gradscope.instrument.taps import Observer, full_tensor
from gradscope.naming import Selection
from gradscope.naming.paths import plain_name
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import iterations
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.uses import Use
from gradscope.tracing.lookup.functions.bounded_functions import bounded_functions
from gradscope.tracing.lookup.functions.clips import clips
from gradscope.tracing.lookup.functions.drawn.random_masks import random_masks
from gradscope.tracing.lookup.functions.softmax_products import attentions
from gradscope.tracing.lookup.named_values import ambiguous
from gradscope.tracing.tracer import Trace


def make_plan(trace: Trace, spec: CaptureSpec, observe: Observer = full_tensor) -> Plan:
    """Returns the plan that observes everything selected.

    A layer's inputs are observed with it, since its gain is measured against them.

    Args:
        trace: The trace; made with operations where `spec` looks inside layers.
        spec: The selection.
        observe: What is kept of each value and cotangent.

    Raises:
        UsageError: A pattern selects nothing, or a family is named that nothing requests.
    """
    spec.require_made()
    terms = Terms(trace, spec)
    if spec.selection.select:
        spec.selection.require_matches(known_names(trace, spec, terms, shown=False))
    if spec.wrt is not None:
        spec.wrt.require_matches(known_names(trace, spec, terms, shown=True))
        _require_unambiguous(spec.wrt, trace, spec)
    shown = {site.value for site in trace.sites if any(selects_site(spec, site, family) for family in _LAYER_FAMILIES)}
    read = {value for layer in trace.layers if not shown.isdisjoint(layer.outputs) for value in layer.inputs}
    observed = shown | read
    sites = tuple(site for site in trace.sites if site.value in observed and not site.opaque and not site.eliminated)
    gradients = {number for number, site in enumerate(sites) if has_gradient(site)}
    if naming.ACTIVATION_GRAD not in spec.families:
        gradients = set[int]()
    observable = (term for term in terms.spec() if has_gradient(term.use) and not term.use.eliminated)
    return Plan(sites=sites, gradients=frozenset(gradients), observe=observe, terms=tuple(observable))


_LAYER_FAMILIES: Final = (naming.ACTIVATION, naming.ACTIVATION_GRAD)


def has_gradient(tap_point: Site | Use) -> bool:
    """Returns whether the gradient of the loss with respect to a site, or the term of a use, can be observed."""
    return tap_point.reach is Reach.GRADIENT and not tap_point.opaque


def selects_site(spec: CaptureSpec, site: Site, family: str) -> bool:
    """Returns whether a site is selected under any of its names in any iteration."""
    return any(
        spec.selects_layer(family, name, iteration) for name in site.names for iteration in spec.iterations(site.loops)
    )


def with_bounded_functions(plan: Plan, trace: Trace, spec: CaptureSpec) -> Plan:
    """Returns a plan that also observes how far bounded functions inside layers, and clips, are at their limits, and
    how much random masks drop.

    Args:
        plan: The plan of what is shown; nothing is fed, stopped or differentiated but the loss.
        trace: The trace.
        spec: The selection; without activations, nothing is added.
    """
    if naming.ACTIVATION not in spec.families or not plan.sites:
        return plan
    by_value = {each.site.value: each for each in (*bounded_functions(trace), *clips(trace), *random_masks(trace))}
    for each in attentions(trace):  # the saturation of some is observed, too
        by_value[each.site.value] = replace(by_value.get(each.site.value, each), positions=each.positions)
    found = list(by_value.values())
    sums = {bounded.noise.site.value: bounded.noise for bounded in found if bounded.noise is not None}.values()
    first = len(plan.sites)
    return replace(
        plan,
        sites=(*plan.sites, *(each.site for each in (*found, *sums))),
        bounded=dict(enumerate(found, first)),
        noisy=dict(enumerate(sums, first + len(found))),
    )


def _require_unambiguous(wrt: Selection, trace: Trace, spec: CaptureSpec) -> None:
    """Refuses a name, other than a pattern, that is that of several values which can be differentiated with respect to.

    Raises:
        UsageError: There is one; the hint has the keys of its values.
    """
    arguments = [(leaf.family, leaf.name) for leaf in trace.arguments if naming.gradient_family(leaf.family)]
    shown = [(name, site.loops) for site in trace.sites for name in site.names if spec.shows(name)]
    paths = [str(name.at(iteration)) for name, loops in shown for iteration in iterations(loops)]
    keys: dict[str, dict[str, None]] = {}
    for family, name in (*arguments, *((naming.ACTIVATION, path) for path in paths)):
        keys.setdefault(plain_name(name), {})[naming.key_of(family, name)] = None
    for pattern in wrt.select:
        if pattern.is_name and len(found := keys.get(pattern.spelling, {})) > 1:
            raise ambiguous(pattern.spelling, found)


def known_names(trace: Trace, spec: CaptureSpec, terms: Terms, *, shown: bool) -> list[str]:
    """Returns the names and keys that a pattern may match, names first.

    Args:
        trace: The trace.
        spec: The selection.
        terms: The terms of its gradients.
        shown: Whether names of layers and operations are left out that the spec does not show, whatever it selects.
    """
    found = ((name, site.loops) for site in trace.sites for name in site.names if not shown or spec.shows(name))
    paths = [str(name.at(iteration)) for name, loops in found for iteration in spec.iterations(loops)]
    layers = [(family, path) for path in paths for family in _LAYER_FAMILIES]
    leaves = [(leaf.family, leaf.name) for leaf in (*trace.arguments, *trace.auxiliary)]
    gradients = [(gradient, name) for family, name in leaves if (gradient := naming.gradient_family(family))]
    parts = [(naming.TERM, name_of(term, iteration)) for term in terms.candidates() for iteration in term.of]
    examples = [(naming.EXAMPLE_GRAD, name) for family, name in leaves if spec.per_example and family == naming.PARAM]
    known = [*layers, *leaves, *gradients, *parts, *examples]
    return list(dict.fromkeys([name for _, name in known] + [naming.key_of(*key) for key in known]))
