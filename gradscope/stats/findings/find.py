"""Findings: the table of rules, and what they find in a dump.

A rule is a pure function from evidence and thresholds to findings. A dump of the core tier, of some families only, or
without layers is judged by what it has: a number that is not there trips no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest.manifest import Manifest
from gradscope.stats.findings import structure_rules as structure
from gradscope.stats.findings import tensor_rules as rules
from gradscope.stats.findings.rule_evidence import Evidence, Finding, Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        name: Its stable name.
        sentence: What it finds, as documentation.
        thresholds: The fields of `Thresholds` that it reads, whose defaults are its own.
        check: The rule itself.
    """

    name: str
    sentence: str
    thresholds: tuple[str, ...] = ()
    check: Callable[[Evidence, Thresholds], Iterable[Finding]]


#: Every rule, in the order in which several findings about one tensor are listed.
RULES: Final = (
    Rule(name="nonfinite", sentence="A tensor has a NaN or an infinity.", check=rules.nonfinite),
    Rule(
        name="vanishing",
        sentence="The mean magnitude of a gradient is below the threshold, but not zero.",
        thresholds=("vanishing",),
        check=rules.vanishing,
    ),
    Rule(
        name="exploding",
        sentence="A gradient exceeds its parameter by more than the ratio, or has an element above the magnitude.",
        thresholds=("exploding_ratio", "exploding_magnitude"),
        check=rules.exploding,
    ),
    Rule(
        name="dead",
        sentence="More than this share of an activation's units are at most zero over the whole batch.",
        thresholds=("dead",),
        check=rules.dead,
    ),
    Rule(
        name="zero-grad",
        sentence="A gradient is exactly zero, or there is none because the loss does not depend on the value.",
        check=structure.zero_gradient,
    ),
    Rule(
        name="unused-param",
        sentence="A parameter does not reach the loss, or no layer uses it.",
        check=structure.unused_parameter,
    ),
    Rule(
        name="init",
        sentence="The standard deviations of neighbouring layers' outputs differ by more than this factor.",
        thresholds=("init",),
        check=structure.initialisation,
    ),
    Rule(
        name="self-check",
        sentence="Observing changed a parameter's gradient by more than rounding.",
        check=structure.self_check,
    ),
)


def find(manifest: Manifest, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """What the rules find in a dump.

    Args:
        manifest: The dump's manifest; its statistics are all that is read.
        thresholds: What counts as too much; the defaults where None.

    Returns:
        Findings about values in execution order, then those about gradients; about one tensor in the order of `RULES`.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    evidence = Evidence(manifest)
    limits = Thresholds() if thresholds is None else thresholds
    found = [each for rule in RULES for each in rule.check(evidence, limits)]
    return tuple(sorted(found, key=evidence.rank))
