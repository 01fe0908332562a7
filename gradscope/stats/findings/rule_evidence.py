"""Defines the arguments and the results of rules: `RuleEvidence`, `Thresholds` with their defaults, and `Finding`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.naming import IterationIndex
from gradscope.stats.columns import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A tensor that looks wrong, and why.

    Attributes:
        rule: Name of the rule that returned the finding.
        name: The tensor's name.
        family: The tensor's family.
        why: The reason with its number, as the predicate of a sentence without a full stop.
        source: `file:line` of the tensor in the user's code; None where unknown.
        iteration: Index per enclosing loop, outermost first.
        tensors: Number of tensors that it concerns.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> dump = gs.capture(lambda w, x: (w["a"] * x).sum(), {"a": jnp.ones(2), "b": jnp.ones(2)}, jnp.ones(2))
        >>> [(finding.rule, finding.name) for finding in dump.findings()]
        [('unused-param', 'b'), ('zero-grad', 'b')]
    """

    rule: str
    name: str
    family: str
    why: str
    source: str | None
    iteration: IterationIndex
    tensors: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds of the rules, with the defaults of the Python interface and of the command line.

    Attributes:
        vanishing: Mean magnitude below which a gradient vanishes.
        exploding_ratio: `g/w` above which a parameter's gradient explodes.
        exploding_magnitude: Magnitude of one element above which a gradient explodes.
        dead: Share of dead units above which an activation is dead.
        init: Ratio of the standard deviations of neighbouring layers above which the initialisation is doubtful.

    Example:
        >>> import gradscope as gs
        >>> gs.Thresholds(dead=0.9).vanishing  # the others have their defaults
        1e-07
    """

    vanishing: float = 1e-7
    exploding_ratio: float = 1.0
    exploding_magnitude: float = 1e4
    dead: float = 0.5
    init: float = 10.0


class RuleEvidence:
    """A manifest, indexed for rules.

    Attributes:
        manifest: The manifest.
        entries: Its entries without aliases, in execution order; those of one execution index in the order written.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        own = (entry for entry in manifest.entries if entry.alias_of is None)
        self.entries = tuple(sorted(own, key=lambda entry: entry.site.index))
        self._causes = {(cause.family, cause.name): cause.why for cause in manifest.causes}
        self._details = {(line.family, line.name): line.detail for line in manifest.ledger.missing}
        self._by_key = {naming.key_of(entry.family, entry.name): entry for entry in manifest.entries}

    @property
    def gradients(self) -> tuple[Entry, ...]:
        """The entries of gradients, present or absent, without those of terms, which are summands of a gradient."""
        return tuple(entry for entry in self.entries if naming.value_family(entry.family) is not None)

    def entry(self, family: str, name: str) -> Entry | None:
        """Returns the entry of a family and name, or that of an alias's tensor; None where there is none."""
        found = self._by_key.get(naming.key_of(family, name))
        return found if found is None or found.alias_of is None else self._by_key.get(found.alias_of)

    def cause(self, entry: Entry) -> str | None:
        """Returns the reason why a gradient is exactly zero; None where the manifest has none."""
        return self._causes.get((entry.family, entry.name))

    def detail(self, entry: Entry) -> str:
        """Returns the ledger's detail on why a tensor is missing; "" where it has none."""
        return self._details.get((entry.family, entry.name), "")

    def rank(self, finding: Finding) -> tuple[bool, float]:
        """Returns the sort key of a finding: values before gradients, each by execution index.

        A finding about a tensor without an entry comes after all others of its kind.
        """
        found = self.entry(finding.family, finding.name)
        return naming.is_gradient(finding.family), math.inf if found is None else found.site.index


def column(entry: Entry, name: str) -> float:
    """Returns the number in one of an entry's columns; 0 where the column does not apply."""
    return number(entry.stats, name) or 0.0


def finding(rule: str, entry: Entry, why: str) -> Finding:
    """Returns the finding of a rule about one entry."""
    site = entry.site
    return Finding(
        rule=rule, name=entry.name, family=entry.family, why=why, source=site.source, iteration=site.iteration
    )
