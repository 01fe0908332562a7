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
        if entry is None:
            continue
        size = each.size
        own, other = (f"[{size}, 1]", f"[{size}]") if each.column else (f"[{size}]", f"[{size}, 1]")
        why = (
            f"has shape {own} and meets a value of the model of shape {other}: {each.primitive} broadcasts them to "
            f"[{size}, {size}], so the loss pairs every example with every other"
        )
        found = suspect("broadcast", entry, why)
        yield replace(found, finding=replace(found.finding, source=each.source))
