"""Isolation: which layers of a candidate make error themselves, each run alone on what the reference has.

Vocabulary:

- A *local* error is what a layer makes of the reference's inputs and cotangents, held against what the reference made
  of them: *forward* of its outputs, *VJP* of the cotangents that it sends back to what it reads, parameters included.
- A *finding* is the judgement on one such tensor, with the layers that it may be the work of: the gradient of a value
  that several layers read is the sum of what they send back, and the reference has only the sum.

An error in such a sum is laid to those of its layers that are known by another tensor to be wrong; where none is, to
the first of them, and the others are named beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradscope.comparison.judging.rows import Row
from gradscope.comparison.result import EXIT_CODES, Verdict
from gradscope.dump.record import Json
from gradscope.naming import is_gradient, key_of, printable
from gradscope.naming.wording import brief, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFinding:
    """One tensor of the isolated candidate, judged by the reference's.

    Attributes:
        row: The judgement.
        layers: Paths of the layers that it may be the work of, in execution order.
    """

    row: Row
    layers: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether it is over tolerance."""
        return self.row.status == "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """One layer of the candidate, run alone.

    Attributes:
        name: Its path in the candidate.
        source: `file:line` of it; None where unknown.
        forward: Of its outputs the one furthest from passing; None where none was compared.
        vjp: Of the cotangents that it sends back likewise.
        shared_with: Layers that an error of its VJP may come from instead.
    """

    name: str
    source: str | None = None
    forward: Row | None = None
    vjp: Row | None = None
    shared_with: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether it makes an error over tolerance."""
        return any(row is not None and row.status == "different" for row in (self.forward, self.vjp))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The reference's keys of what it was judged by."""
        return tuple(key_of(row.family, row.name) for row in (self.forward, self.vjp) if row is not None)

    def to_json(self) -> dict[str, Json]:
        """The row as docs/reference/json.md has it; what does not apply is absent."""
        named: dict[str, Json] = {"name": self.name, "status": "different" if self.differs else "same"}
        for direction, row in (("forward", self.forward), ("vjp", self.vjp)):
            if row is not None:
                named |= {
                    direction: row.needed,
                    f"{direction}_tensor": key_of(row.family, row.name),
                    f"{direction}_tolerance": row.rule or row.tolerance,
                    f"{direction}_why": row.why or None,
                }
        named |= {"shared_with": list(self.shared_with) or None, "source": self.source}
        return {column: value for column, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A value of the candidate that is not judged by itself, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What running a candidate's layers one by one found.

    Attributes:
        rows: One for every layer that was judged, in execution order.
        left_out: What was not, and why.
        arguments: Where the arguments of the candidate's loss came from: keys by `reference`, `candidate` or `model`.
    """

    rows: tuple[LocalRow, ...]
    left_out: tuple[LeftOut, ...] = ()
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def different(self) -> tuple[LocalRow, ...]:
        """The layers that make error themselves."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def verdict(self) -> Verdict:
        """Whether every layer does what the reference's does."""
        if not self.rows:
            return "nothing compared"
        return "different" if self.different else "same"

    @property
    def exit_code(self) -> int:
        """The status a command exits with, as of a comparison."""
        return EXIT_CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict for a human."""
        if not self.rows:
            return "No layer could be run alone: the reference holds no activation of the candidate's."
        of_all = counted(len(self.rows), "layer")
        if not self.different:
            return f"None of {of_all} makes error by itself, given what the reference gave it."
        worst = max(self.different, key=_badness)
        more = len(self.different) - 1
        beside = f", and so {'does' if more == 1 else 'do'} {more} more" if more else ""
        return f"`{printable(worst.name)}` of {of_all} makes error by itself ({_errors(worst)}){beside}."

    def to_json(self) -> dict[str, Json]:
        """The part `isolation` of the comparison's JSON; infinities are floats."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "rows": [row.to_json() for row in self.rows],
            "left_out": [{"name": each.name, "why": each.why} for each in self.left_out],
            "arguments": {origin: list(keys) for origin, keys in self.arguments.items()},
        }


def local_rows(findings: Sequence[LocalFinding], sources: Mapping[str, str | None]) -> tuple[LocalRow, ...]:
    """The layers that findings are about.

    Args:
        findings: Every tensor that was judged.
        sources: The source of each layer by path, in execution order. What has no layer comes last, under its key.
    """
    known = {each.layers[0] for each in findings if each.differs and len(each.layers) == 1}
    rows = {name: LocalRow(name=name, source=source) for name, source in sources.items()}
    for finding in findings:
        for name, shared_with in _blamed(finding, known):
            rows[name] = _with_finding(rows.get(name, LocalRow(name=name)), finding, shared_with)
    return tuple(row for row in rows.values() if row.forward is not None or row.vjp is not None)


def _blamed(finding: LocalFinding, known: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The layers that a finding counts for, each with those that may be meant instead."""
    if not finding.differs:
        return [(name, ()) for name in finding.layers]
    wrong = [name for name in finding.layers if name in known]
    return [(name, ()) for name in wrong] or [(finding.layers[0], finding.layers[1:])]


def _with_finding(row: LocalRow, finding: LocalFinding, shared_with: tuple[str, ...]) -> LocalRow:
    gradient = is_gradient(finding.row.family)
    before = row.vjp if gradient else row.forward
    worst = finding.row if before is None else max(before, finding.row, key=_rank)
    return LocalRow(
        name=row.name,
        source=row.source,
        forward=row.forward if gradient else worst,
        vjp=worst if gradient else row.vjp,
        shared_with=tuple(dict.fromkeys((*row.shared_with, *shared_with))),
    )


def _rank(row: Row) -> tuple[bool, float]:
    return row.status == "different", math.inf if row.needed is None else row.needed


def _badness(row: LocalRow) -> float:
    return max(_rank(each)[1] for each in (row.forward, row.vjp) if each is not None and each.status == "different")


def _errors(row: LocalRow) -> str:
    sides = (("forward", row.forward), ("VJP", row.vjp))
    return ", ".join(f"{name} {_error(each)}" for name, each in sides if each is not None)


def _error(row: Row) -> str:
    if row.status == "same":
        return "agrees"
    return row.why if row.needed is None or math.isinf(row.needed) else f"rel_l2 {brief(row.needed)}"
