"""Planning: from what a user wants to see to the sites that must be observed for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradscope import naming
from gradscope.instrument.plan import Plan
from gradscope.instrument.taps import Observer, whole_tensor
from gradscope.naming import Selection
from gradscope.tracing.frames import iterations
from gradscope.tracing.reversal import Reach
from gradscope.tracing.sites import Site, SiteName
from gradscope.tracing.tracer import Trace

EVERYTHING: Final = frozenset(naming.FAMILIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants to see.

    Attributes:
        selection: By name or key.
        families: By family.
        depth: Layers of at most so many scopes; None for all.
        operations: Every operation beside every layer.
        wrt: Which values' gradients; None for all.
        keys: Only these, by key, whatever the rest says; None for no such restriction.
    """

    selection: Selection = field(default_factory=Selection)
    families: frozenset[str] = EVERYTHING
    depth: int | None = None
    operations: bool = False
    wrt: Selection | None = None
    keys: frozenset[str] | None = None

    def wants(self, family: str, name: str) -> bool:
        """Whether a tensor of this family and name is wanted."""
        key = naming.key_of(family, name)
        if self.keys is not None:
            return key in self.keys
        if self.wrt is not None and naming.is_gradient(family):
            of_value = naming.key_of(naming.value_family(family) or family, name)
            if not self.wrt.wants(name, key, of_value):
                return False
        return family in self.families and self.selection.wants(name, key)

    def wants_layer(self, family: str, name: SiteName, iteration: tuple[int, ...]) -> bool:
        """Whether a layer's output is wanted at one iteration."""
        shown = self.operations or self.keys is not None or not name.operation
        shallow = self.depth is None or len(name.path.components) <= self.depth
        return shown and shallow and self.wants(family, str(name.at(iteration)))


def make_plan(trace: Trace, wanted: Wanted, observe: Observer = whole_tensor) -> Plan:
    """The plan that shows everything wanted.

    A layer's inputs are observed with it, since its gain is measured against them.

    Raises:
        UsageError: A pattern selects nothing; the hint names the nearest names.
    """
    if wanted.selection.select:
        wanted.selection.require_matches(_known_names(trace))
    if wanted.wrt is not None:
        wanted.wrt.require_matches(_known_names(trace))
    shown = {site.value for site in trace.sites if any(wants_site(wanted, site, family) for family in _LAYER_FAMILIES)}
    read = {value for layer in trace.layers if not shown.isdisjoint(layer.outputs) for value in layer.inputs}
    observed = shown | read
    sites = tuple(site for site in trace.sites if site.value in observed and not site.opaque and not site.eliminated)
    gradients = {number for number, site in enumerate(sites) if has_gradient(site)}
    if naming.ACTIVATION_GRAD not in wanted.families:
        gradients = set[int]()
    return Plan(sites=sites, gradients=frozenset(gradients), observe=observe)


_LAYER_FAMILIES: Final = (naming.ACTIVATION, naming.ACTIVATION_GRAD)


def has_gradient(site: Site) -> bool:
    """Whether a gradient of the loss with respect to this site can be observed, if there is one."""
    return site.reach is Reach.GRADIENT and not site.opaque


def wants_site(wanted: Wanted, site: Site, family: str) -> bool:
    """Whether a site is wanted under any of its names in any turn."""
    return any(wanted.wants_layer(family, name, turn) for name in site.names for turn in iterations(site.loops))


def _known_names(trace: Trace) -> list[str]:
    """Every name and key a pattern may match, names first."""
    layers = [(family, str(name.at(turn))) for s in trace.sites for name in s.names for turn in iterations(s.loops)
              for family in _LAYER_FAMILIES]  # fmt: skip
    leaves = [(leaf.family, leaf.name) for leaf in (*trace.arguments, *trace.auxiliary)]
    gradients = [(gradient, name) for family, name in leaves if (gradient := naming.gradient_family(family))]
    known = [*layers, *leaves, *gradients]
    return list(dict.fromkeys([name for _, name in known] + [naming.key_of(*key) for key in known]))
