"""Defines the table of all rules, and applies them to the manifest of a dump.

A rule is a pure function from evidence and thresholds to findings. It skips a tensor whose manifest lacks the number
that it needs, as in a dump of the core tier, of some families only, or without layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest.manifest import Manifest
from gradscope.stats.findings import structure_rules as structure
from gradscope.stats.findings import tensor_rules as rules
from gradscope.stats.findings.rule_evidence import Finding, RuleEvidence, Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRule:
    """One row of the table of rules.

    Attributes:
        name: The rule's stable name.
        sentence: A description of the rule's findings, for users.
        formula: What is compared with what.
        thresholds: The fields of `Thresholds` that the rule reads.
        remedy: What to do.
        check: The function that returns the findings.
    """

    name: str
    sentence: str
    formula: str = ""
    thresholds: tuple[str, ...] = ()
    remedy: str = ""
    check: Callable[[RuleEvidence, Thresholds], Iterable[Finding]]


#: Every rule, in the order in which several findings about one tensor are listed.
RULES: Final = (
    FindingRule(name="nonfinite", sentence="A tensor has a NaN or an infinity.", check=rules.nonfinite),
    FindingRule(
        name="vanishing",
        sentence="The mean magnitude of a gradient is below the threshold, but not zero.",
        thresholds=("vanishing",),
        check=rules.vanishing,
    ),
    FindingRule(
        name="exploding",
        sentence="A gradient exceeds its parameter by more than the ratio, or has an element above the magnitude.",
        thresholds=("exploding_ratio", "exploding_magnitude"),
        check=rules.exploding,
    ),
    FindingRule(
        name="dead",
        sentence="More than this share of an activation's units are at most zero over the whole batch.",
        thresholds=("dead",),
        check=rules.dead,
    ),
    FindingRule(
        name="zero-grad",
        sentence="A gradient is exactly zero, or there is none because the loss does not depend on the value.",
        check=structure.zero_gradient,
    ),
    FindingRule(
        name="unused-param",
        sentence="A parameter does not reach the loss, or no layer uses it.",
        check=structure.unused_parameter,
    ),
    FindingRule(
        name="init",
        sentence="The standard deviations of neighbouring layers' outputs differ by more than this factor.",
        thresholds=("init",),
        check=structure.initialisation,
    ),
    FindingRule(
        name="self-check",
        sentence="Observing changed a parameter's gradient by more than rounding.",
        check=structure.self_check,
    ),
)


def find(manifest: Manifest, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """Returns the findings of all rules in a dump.

    Args:
        manifest: The dump's manifest; tensors are not read.
        thresholds: The thresholds of the rules; the defaults where None.

    Returns:
        Findings about values in execution order, then those about gradients. Several findings about one tensor are in
        the order of `RULES`.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    evidence = RuleEvidence(manifest)
    limits = Thresholds() if thresholds is None else thresholds
    found = [each for rule in RULES for each in rule.check(evidence, limits)]
    return tuple(sorted(found, key=evidence.rank))
