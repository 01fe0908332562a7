"""Folds what rules suspect into causes: a consequence is counted with its cause, and is no finding of its own.

The table `_CONSEQUENCES` states what follows from what, and where: *behind* in the forward pass, *before* it (which the
backward pass reaches later), or anywhere. A gradient that is exactly zero follows from whatever lets nothing pass.
Causes come in the order of `_ORDER`, worst first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from gradscope import naming
from gradscope.stats.findings.rule_evidence import Finding, Suspect

_Where: TypeAlias = Literal["behind", "before", "anywhere"]

#: Rules, the worst first: numbers that are wrong, gradients that do not arrive, those that hardly do, and the rest.
_ORDER: Final = ("self-check", "nonfinite", "overflow", "broadcast", "out-of-bounds", "init", "dead", "saturated",
                 "exploding", "vanishing", "underflow", "zero-grad", "unused-param")  # fmt: skip

#: The rules that read numbers, which mean nothing where some are not finite.
_OF_NUMBERS: Final = ("init", "dead", "saturated", "exploding", "vanishing", "underflow")

#: By rule of the cause and of the consequence, where the consequence may be. Of two that could be each other's, the
#: cause is the one that comes first in `_ORDER`.
_CONSEQUENCES: Final[Mapping[str, Mapping[str, _Where]]] = {
    "nonfinite": dict.fromkeys(("overflow", *_OF_NUMBERS), "anywhere"),
    "overflow": dict.fromkeys(_OF_NUMBERS, "anywhere"),
    "init": {"dead": "behind", "saturated": "behind", "exploding": "anywhere", "vanishing": "anywhere",
             "underflow": "anywhere"},
    "dead": {"init": "behind", "saturated": "behind", "exploding": "anywhere", "vanishing": "anywhere",
             "underflow": "before"},
    "saturated": {"exploding": "anywhere", "vanishing": "anywhere", "underflow": "before"},
    "exploding": {"saturated": "behind", "dead": "behind", "exploding": "anywhere", "vanishing": "anywhere"},
    "vanishing": {"underflow": "before"},
}  # fmt: skip


def causes(suspects: Sequence[Suspect]) -> tuple[Finding, ...]:
    """Returns one finding for each cause, worst first.

    Args:
        suspects: What the rules returned.
    """
    ranked = sorted(suspects, key=_rank)
    found: list[tuple[Suspect, set[str]]] = []
    for each in ranked:
        cause = next((known for known in found if _explains(known[0], each)), None)
        if cause is None:
            found.append((each, set(each.keys)))
        else:
            cause[1].update(each.keys)
    return tuple(_finding(suspect, keys) for suspect, keys in found)


def _rank(suspect: Suspect) -> tuple[int, bool, float, bool]:
    # An input is before every layer that its size upsets.
    first = suspect.finding.family == naming.INPUT
    rule = suspect.finding.rule
    order = -1 if first and rule == "exploding" else _ORDER.index(rule)
    return order, rule == "overflow" and not suspect.total, suspect.begin, not suspect.total


def _explains(cause: Suspect, other: Suspect) -> bool:
    rule, consequence = cause.finding.rule, other.finding.rule
    if consequence == "zero-grad":
        return _explains_zero(cause, other)
    if rule == consequence == "overflow":
        return cause.total and not other.total  # one is close to the largest number, where another was beyond it
    where = _CONSEQUENCES.get(rule, {}).get(consequence)
    if where == "behind":
        return other.begin >= cause.begin
    if where == "before":
        return other.begin <= cause.begin
    return where == "anywhere"


def _explains_zero(cause: Suspect, other: Suspect) -> bool:
    """Returns whether gradients are exactly zero because of a cause."""
    why = other.finding.why
    if why.startswith("is absent"):
        return False  # the program has no path for them, whatever the numbers are
    if cause.finding.rule == "underflow":
        return "underflow in" in why
    if cause.finding.rule == "saturated":
        return "rounds to zero" in why or other.keys <= cause.keys
    return cause.total or other.keys <= cause.keys


def _finding(suspect: Suspect, keys: set[str]) -> Finding:
    return replace(suspect.finding, tensors=max(len(keys), suspect.finding.tensors))
