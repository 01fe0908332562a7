"""The rule about the batch: `broadcast`, a loss that pairs every example with every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradscope import naming
from gradscope.stats.findings.rule_evidence import RuleEvidence, Suspect, Thresholds, suspect


def broadcast(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds arrays of the batch that a loss combines with the predictions of all examples, not of their own alone."""
    for each in evidence.manifest.broadcasts:
        entry = evidence.entry(naming.INPUT, each.input)
        if entry is not None:
            found = suspect("broadcast", entry, each.why)
            yield replace(found, finding=replace(found.finding, source=each.source))
