"""Inner values are those inside layers that a query names one by one: they are shown although operations are not."""

from __future__ import annotations

from dataclasses import replace

from gradscope import naming
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import known_names
from gradscope.instrument.query.terms import Terms
from gradscope.naming.selecting.patterns import Pattern
from gradscope.tracing.layers.sites import Site, SiteName
from gradscope.tracing.lookup.named_values import NamedValues
from gradscope.tracing.tracer import Trace


def with_inner_values(trace: Trace, spec: CaptureSpec) -> CaptureSpec:
    """Returns a spec that also shows the operations whose gradients it names: `encoder/tanh`, or a checkpoint's name.

    Args:
        trace: The trace; made with operations.
        spec: The selection.

    Raises:
        UsageError: No value has a name, or several have it.
    """
    if spec.wrt is None:
        return spec
    shown = known_names(trace, spec, Terms(trace, spec), shown=True)
    unknown = [each for each in spec.wrt.select if each.is_name and not any(map(each.matches, shown))]
    if not unknown:
        return spec
    values = NamedValues(trace, trace.layers)
    sites = {site.value: site for site in trace.sites}
    inner: set[str] = set()
    keys: dict[str, str] = {}
    for pattern in unknown:
        family, _, own = pattern.spelling.partition("/")
        asked = naming.key_of(naming.ACTIVATION, own) if family == naming.ACTIVATION_GRAD else pattern.spelling
        value, iteration = values.find(asked)
        if value is not None and value in sites and (name := _name_of(sites[value], spec)) is not None:
            inner.add(name.template)
            keys[pattern.spelling] = naming.key_of(naming.ACTIVATION, str(name.at(iteration)))
    selected = tuple(Pattern.parse(keys.get(each.spelling, each.spelling)) for each in spec.wrt.select)
    return replace(spec, wrt=replace(spec.wrt, select=selected), inner=spec.inner | inner)


def _name_of(site: Site, spec: CaptureSpec) -> SiteName | None:
    """Returns the name under which a site is shown: that of a layer that returns it, or its own."""
    return next((name for name in site.names if spec.shows(name)), next(iter(site.names), None))
