"""Folds what rules suspect into causes: a consequence is counted with its cause, and is no finding of its own.

The table `_CONSEQUENCES` states what follows from what, and where: *behind* in the forward pass, *before* it (which the
backward pass reaches later), or anywhere. A gradient that is exactly zero follows from whatever lets nothing pass.
Causes come in the order of `_ORDER`, worst first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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

#: By rule of the cause, the words in the reasons of the gradients that are exactly zero because of it. Those of any
#: other rule are zero whatever the reason, where nothing passes.
_WORDS: Final = {"underflow": "underflow in", "saturated": "rounds to zero"}


def causes(suspects: Sequence[Suspect]) -> tuple[Finding, ...]:
    """Returns one finding for each cause, worst first.

    Args:
        suspects: What the rules returned.
    """
    found = _Causes()
    for each in sorted(suspects, key=_rank):
        cause = found.of(each)
        if cause is None:
            found.add(each)
        else:
            cause.affects(each)
    return tuple(cause.finding() for cause in found)


class _Cause:
    """A `_Cause` is a suspect that no other one explains, with the tensors that its consequences concern.

    Attributes:
        suspect: The suspect.
        place: Its place among all causes.
    """

    def __init__(self, suspect: Suspect, place: int) -> None:
        self.suspect = suspect
        self.place = place
        self._others: set[str] = set()
        self._known = {suspect.keys}  # many suspects may concern the same tensors
        self._explains: dict[str, None] = {}

    def affects(self, other: Suspect) -> None:
        """Adds a consequence, with its tensors."""
        keys = other.keys
        if other.finding.rule != self.suspect.finding.rule:
            self._explains[other.finding.rule] = None
        if keys not in self._known:
            self._known.add(keys)
            self._others.update(keys - self.suspect.keys)

    def finding(self) -> Finding:
        """Returns the finding of the suspect, with the number of all tensors, and what it explains."""
        found = self.suspect.finding
        number = max(len(self.suspect.keys) + len(self._others), found.tensors)
        return replace(found, tensors=number, explains=tuple(self._explains))


class _Causes:
    """`_Causes` are those found so far, in the order of their rank, indexed so that none is compared with all others.

    Those of one rule begin in execution order, so that of those before or behind a suspect the first is found by
    bisection; what concerns a tensor is found by its key.
    """

    def __init__(self) -> None:
        self._all: list[_Cause] = []
        self._groups: dict[tuple[int, bool], list[_Cause]] = {}
        self._totals: dict[tuple[int, bool], _Cause] = {}
        self._by_key: dict[str, list[_Cause]] = {}

    def __iter__(self) -> Iterator[_Cause]:
        return iter(self._all)

    def add(self, suspect: Suspect) -> None:
        """Adds a suspect that comes behind all others and that none of them explains."""
        cause, group = _Cause(suspect, len(self._all)), _rank(suspect)[:2]
        self._all.append(cause)
        self._groups.setdefault(group, []).append(cause)
        if suspect.total:
            self._totals.setdefault(group, cause)
        # Where nothing passes, all gradients before are zero, whichever tensors it concerns.
        if suspect.finding.rule == "saturated" or not (suspect.total or suspect.finding.rule == "underflow"):
            for each in suspect.keys:
                self._by_key.setdefault(each, []).append(cause)

    def of(self, other: Suspect) -> _Cause | None:
        """Returns the first cause that explains a suspect; None where none does."""
        zero = other.finding.rule == "zero-grad"
        if zero and other.finding.why.startswith("is absent"):
            return None  # the program has no path for them, whatever the numbers are
        found = [self._of_zero(group, other) if zero else _of_number(known, other)
                 for group, known in self._groups.items()]  # fmt: skip
        if zero:
            found.append(self._around(other.keys))
        return min((each for each in found if each is not None), key=lambda each: each.place, default=None)

    def _of_zero(self, group: tuple[int, bool], other: Suspect) -> _Cause | None:
        """Returns the first cause of a group because of which any gradients are exactly zero, by their reason."""
        first = self._groups[group][0]
        words = _WORDS.get(first.suspect.finding.rule)
        if words is None:
            return self._totals.get(group)
        return first if words in other.finding.why else None

    def _around(self, keys: frozenset[str]) -> _Cause | None:
        """Returns the first cause that concerns all of some tensors."""
        fewest = min((self._by_key.get(each, ()) for each in keys), key=len, default=())
        return next((cause for cause in fewest if keys <= cause.suspect.keys), None)


def _of_number(group: Sequence[_Cause], other: Suspect) -> _Cause | None:
    """Returns the first cause of a group that explains a suspect about numbers."""
    first = group[0]
    rule, consequence = first.suspect.finding.rule, other.finding.rule
    if rule == consequence == "overflow":
        # One is close to the largest number, where another was beyond it.
        return first if first.suspect.total and not other.total else None
    where = _CONSEQUENCES.get(rule, {}).get(consequence)
    if where == "before":
        place = bisect_left(group, other.begin, key=lambda each: each.suspect.begin)
        return group[place] if place < len(group) else None
    explains = where == "anywhere" or (where == "behind" and other.begin >= first.suspect.begin)
    return first if explains else None


def _rank(suspect: Suspect) -> tuple[int, bool, float, bool]:
    # An input is before every layer that its size upsets.
    first = suspect.finding.family == naming.INPUT
    rule = suspect.finding.rule
    order = -1 if first and rule == "exploding" else _ORDER.index(rule)
    return order, rule == "overflow" and not suspect.total, suspect.begin, not suspect.total
