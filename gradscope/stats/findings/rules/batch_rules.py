"""Two rules are about the batch: `broadcast`, a loss of all pairs, and `out-of-bounds`, indices beyond a table."""

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


def out_of_bounds(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds indices, of the batch or of positions in it, of rows which a table of parameters does not have."""
    for each in evidence.manifest.out_of_bounds:
        family, name = (naming.INPUT, each.input) if each.input else (naming.PARAM, each.table)
        entry = None if name is None else evidence.entry(family, name)
        if entry is not None:
            table = "a table of parameters" if each.table is None else naming.key_of(naming.PARAM, each.table)
            farthest = f"up to {each.index:,}" if each.index >= 0 else f"{-each.index:,} before the first"
            beyond = f"{each.beyond:,} of {each.indices:,}"
            what = (
                f"has {beyond} indices beyond the {each.rows:,} rows of {table}, {farthest}"
                if each.input
                else f"has {each.rows:,} rows, and {beyond} indices that the program makes are beyond them, {farthest}"
            )
            found = suspect("out-of-bounds", entry, f"{what}: JAX takes the nearest row in their place")
            yield replace(found, finding=replace(found.finding, source=each.source))
