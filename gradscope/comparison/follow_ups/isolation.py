"""Isolation finds the layers of a candidate that are wrong by themselves, each run with the reference's inputs.

- A *local* error is the difference between what one layer computes from the reference's inputs and cotangents and what
  the reference computed from them. The *forward* error is that of the layer's outputs. The *VJP* error is that of the
  cotangents that it returns for its inputs and parameters.
- A *finding* is the row of one such tensor, with the layers that computed it. Several layers can have computed a
  gradient together: the gradient of a value that several layers read is the sum of their cotangents, and the reference
  has only the sum.

An error in such a sum is assigned to those of the layers that another tensor shows to be wrong: a tensor that the layer
computed alone, or else the most of these sums. Of layers that share a weight, that is the one whose cotangent differs,
too. Where several layers explain equally many, the sum is assigned to the first, and the others are named in
`shared_with`. An error behind code that rearranges values, of which only the sizes are known, is assigned to that code
where a gradient which it alone returns shows it to be wrong, and the layer is named in `shared_with`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.result import EXIT_CODES, Verdict
from gradscope.dump.record import Json
from gradscope.naming import is_gradient, key_of, printable
from gradscope.naming.paths import BEFORE
from gradscope.naming.wording import brief, counted, joined_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place stores where code is that an error can be assigned to: a layer's, or that before a layer.

    Attributes:
        lines: `file:line` of the code, in program order; of a layer without an error, only the first.
        reads: Of the code before a layer, the layers and inputs whose values it reads; empty for a layer.
        inside: Of the code before a layer, the layer that has the code; None for a layer, and at the top.
    """

    lines: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    inside: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFinding:
    """LocalFinding stores the comparison of one tensor of the isolated candidate with the reference's.

    Attributes:
        row: The row of the tensor.
        places: The names of the layers, or of the code before layers, that may have computed it, or the part of it that
            differs, in execution order. A tensor of which several parts differ, each computed by others, has a finding
            for each.
        rearranging: The code before layers that may have made an error which leaves sizes as they are.
    """

    row: ComparisonRow
    places: tuple[str, ...]
    rearranging: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the tensor is over tolerance."""
        return self.row.status == "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """LocalRow stores the result for one layer of the candidate, or for the code before one, run in isolation.

    Attributes:
        name: The layer's path in the candidate; of the code before it, `before PATH`.
        place: Where the code is.
        forward: The row of the output with the largest error; None where none was compared.
        vjp: The row of the returned cotangent with the largest error; None where none was compared.
        shared_with: Other layers that may have made the error of the VJP.
        wrong: The reference's keys of all tensors that it makes wrong.
    """

    name: str
    place: Place = Place()
    forward: ComparisonRow | None = None
    vjp: ComparisonRow | None = None
    shared_with: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def source(self) -> str | None:
        """`file:line` where the code begins; None where unknown."""
        return next(iter(self.place.lines), None)

    @property
    def is_layer(self) -> bool:
        """Whether the row is about a layer, and not about the code before one."""
        return not self.name.startswith(BEFORE)

    @property
    def differs(self) -> bool:
        """Whether the layer or the code makes an error over tolerance."""
        return bool(self.wrong)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The reference's keys of the tensors in `forward` and `vjp`."""
        return tuple(_key(row) for row in (self.forward, self.vjp) if row is not None)

    def to_json(self) -> dict[str, Json]:
        """Returns the row as JSON, without fields that do not apply."""
        named: dict[str, Json] = {"name": self.name, "status": "different" if self.differs else "same"}
        for direction, row in (("forward", self.forward), ("vjp", self.vjp)):
            if row is not None:
                named |= {
                    direction: row.needed,
                    f"{direction}_tensor": _key(row),
                    f"{direction}_tolerance": row.rule or row.tolerance,
                    f"{direction}_why": row.why or None,
                }
        named |= {
            "shared_with": list(self.shared_with) or None,
            "source": self.source,
            "lines": list(self.place.lines[1:] and self.place.lines) or None,
            "reads": list(self.place.reads) or None,
            "inside": self.place.inside,
        }
        return {column: value for column, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """LeftOut stores a value of the candidate that is not compared in isolation, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Isolation stores the results of running a candidate's layers one by one.

    Attributes:
        rows: One row for every layer that was compared, in execution order.
        left_out: The values that were not compared, and why.
        arguments: The origin of the loss's arguments: keys by `reference`, `candidate` or `model`.
    """

    rows: tuple[LocalRow, ...]
    left_out: tuple[LeftOut, ...] = ()
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def different(self) -> tuple[LocalRow, ...]:
        """The rows of layers that make an error over tolerance."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def verdict(self) -> Verdict:
        """`same` where every layer that was compared is within tolerance."""
        if not self.rows:
            return "nothing compared"
        return "different" if self.different else "same"

    @property
    def exit_code(self) -> int:
        """The exit status of a command, as of a comparison."""
        return EXIT_CODES[self.verdict]

    def sentence(self, first: ComparisonRow | None = None, given: str = "") -> str:
        """Returns the verdict as a sentence, about the layer that makes what first differs, or the largest error.

        Args:
            first: What first differs.
            given: The inputs, parameters and state that differ, as `different_values_given` returns them.
        """
        if not self.rows:
            return "No layer could be run alone: the reference holds no activation of the candidate's."
        of_all = counted(sum(row.is_layer for row in self.rows), "layer")
        if not self.different:
            none = f"None of {of_all} makes error by itself, given what the reference gave it"
            return f"{none}: the dumps differ in the values of the {given}." if given else f"{none}."
        making = next((row for row in self.different if first is not None and _key(first) in row.wrong), None)
        told = making or max(self.different, key=_badness)
        more = len(self.different) - 1
        others = f", and so {'does' if more == 1 else 'do'} {more} more" if more else ""
        subject = f"Of {of_all}, `{printable(told.name)}`" if told.is_layer else _code_before(told)
        elsewhere = making is not None and first is not None and first.name != making.name
        same = f"; that is what first differs at `{printable(first.name)}`" if first is not None and elsewhere else ""
        return f"{subject} makes error by itself ({_errors(told)}){others}{same}."

    def to_json(self, first: ComparisonRow | None = None, given: str = "") -> dict[str, Json]:
        """Returns the value of `isolation` in the comparison's JSON, with that sentence; infinities are floats."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence(first, given),
            "rows": [row.to_json() for row in self.rows],
            "left_out": [{"name": each.name, "why": each.why} for each in self.left_out],
            "arguments": {origin: list(keys) for origin, keys in self.arguments.items()},
        }


def local_rows(findings: Sequence[LocalFinding], places: Mapping[str, Place]) -> tuple[LocalRow, ...]:
    """Returns one row for each place that has findings.

    Args:
        findings: The finding of every tensor that was compared.
        places: Each place by name, in execution order. Tensors without a layer come last, under their keys.
    """
    blamed = _blamed([number for number, each in enumerate(findings) if each.differs], findings)
    rows = {name: LocalRow(name=name, place=place) for name, place in places.items()}
    for number, finding in enumerate(findings):
        for name, shared_with in blamed.get(number) or [(name, ()) for name in finding.places]:
            rows[name] = _with_finding(rows.get(name, LocalRow(name=name)), finding, shared_with)
    return tuple(row for row in rows.values() if row.forward is not None or row.vjp is not None)


def _blamed(wrong: Sequence[int], findings: Sequence[LocalFinding]) -> dict[int, list[tuple[str, tuple[str, ...]]]]:
    """Returns the places that wrong findings are assigned to, each with the places that may be at fault instead."""
    places = {number: findings[number].places for number in wrong}
    rearranging = {number: frozenset(findings[number].rearranging) - {*places[number]} for number in wrong}
    alone = {number: each[0] for number, each in places.items() if len(each) == 1}
    wrong_code = {name for number, name in alone.items() if not rearranging[number]}
    # What only code can have made shows code to be wrong, although not which.
    of_code = [number for number, each in places.items() if each and all(name.startswith(BEFORE) for name in each)]
    wrong_code |= {name for of in _covering(of_code, places).values() for name, _ in of}
    explained = {number: each & wrong_code for number, each in rearranging.items() if each & wrong_code}
    known = {name for number, name in alone.items() if number not in explained}
    found: dict[int, list[tuple[str, tuple[str, ...]]]] = {
        number: [(name, each) for name in explained[number]]
        if number in explained
        else [(name, ()) for name in each if name in known]
        for number, each in places.items()
    }
    # Values come before gradients, which differ behind wrong values, too.
    ordered = sorted(wrong, key=lambda number: is_gradient(findings[number].row.family))
    return found | _covering([number for number in ordered if not found[number]], places)


def _covering(
    numbers: Sequence[int], places: Mapping[int, Sequence[str]]
) -> dict[int, list[tuple[str, tuple[str, ...]]]]:
    """Returns one of the places of each finding, few in all, with those that explain as many findings as it does."""
    found: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
    unexplained = list(numbers)
    while unexplained:
        counts = Counter(name for number in unexplained for name in places[number])
        most = max(counts.values())
        first = next(name for number in unexplained for name in places[number] if counts[name] == most)
        for number in unexplained:
            if first in places[number]:
                equal = tuple(name for name in places[number] if counts[name] == most and name != first)
                found[number] = [(first, equal)]
        unexplained = [number for number in unexplained if number not in found]
    return found


def _with_finding(row: LocalRow, finding: LocalFinding, shared_with: tuple[str, ...]) -> LocalRow:
    gradient = is_gradient(finding.row.family)
    before = row.vjp if gradient else row.forward
    worst = finding.row if before is None else max(before, finding.row, key=_rank)
    return LocalRow(
        name=row.name,
        place=row.place,
        forward=row.forward if gradient else worst,
        vjp=worst if gradient else row.vjp,
        shared_with=tuple(dict.fromkeys((*row.shared_with, *shared_with))),
        wrong=(*row.wrong, _key(finding.row)) if finding.differs else row.wrong,
    )


def _key(row: ComparisonRow) -> str:
    return key_of(row.family, row.name)


def _rank(row: ComparisonRow) -> tuple[bool, float]:
    return row.status == "different", math.inf if row.needed is None else row.needed


def _badness(row: LocalRow) -> float:
    return max(_rank(each)[1] for each in (row.forward, row.vjp) if each is not None and each.status == "different")


def _code_before(row: LocalRow) -> str:
    """Returns the code before a layer as the subject of a sentence."""
    layer, read = f"`{printable(row.name.removeprefix(BEFORE))}`", [f"`{printable(each)}`" for each in row.place.reads]
    where = f"between {', '.join(read)} and {layer}" if read else f"before {layer}"
    inside = [] if row.place.inside is None else [f"in `{printable(row.place.inside)}`"]
    known = ", ".join([*inside, *([printable(joined_lines(row.place.lines))] if row.place.lines else [])])
    return f"The code {where} ({known})" if known else f"The code {where}"


def _errors(row: LocalRow) -> str:
    sides = (("forward", row.forward), ("VJP", row.vjp))
    return ", ".join(f"{name} {_error(each)}" for name, each in sides if each is not None)


def _error(row: ComparisonRow) -> str:
    if row.status == "same":
        return "agrees"
    return row.why if row.needed is None or math.isinf(row.needed) else f"rel_l2 {brief(row.needed)}"
