"""Rows: the judgement on each tensor, one row for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradscope.comparison.metrics.example_spread import ExampleError
from gradscope.comparison.pairing.matching import MatchedBy
from gradscope.dump.record import Json

Status: TypeAlias = Literal["same", "different", "missing", "extra"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor of a comparison.

    Attributes:
        name: Its layer or parameter path.
        family: Its family.
        status: `missing` is in the reference only, `extra` in the candidate only.
        index: Its execution index; the reference's where there are two.
        matched_by: How its counterpart was found; None where there is none.
        counterpart: What the candidate calls it, by keys where the family is another; "" where it is called the same.
            Of what only the candidate has, what the reference calls it.
        made_by: What was done to the counterpart before it was compared, in words; "" for nothing.
        metrics: The metrics that apply, by column name.
        tolerance: The tolerance on `rel_l2` it was judged by; None without a counterpart, in a bitwise comparison, and
            where a rule asked for something else.
        rule: What a rule asked for instead; "" for nothing.
        needed: The smallest tolerance that would pass, inf where none would; None without a counterpart.
        why: Why it is not the same, or what it was judged by if not by its elements; "" for nothing to say.
        likely: In what simple way it is what the reference has nevertheless, as a clause about the candidate's tensor.
        examples: Of gradients of several examples, what their metrics are made of; None for any other tensor.
        counts: Whether it has a say in the verdict: a missing or extra row that was allowed has none.
    """

    name: str
    family: str
    status: Status
    index: int
    matched_by: MatchedBy | None = None
    counterpart: str = ""
    made_by: str = ""
    metrics: Mapping[str, Json] = field(default_factory=dict[str, Json])
    tolerance: float | None = None
    rule: str = ""
    needed: float | None = None
    why: str = ""
    likely: str = ""
    examples: ExampleError | None = None
    counts: bool = True

    @property
    def compared(self) -> bool:
        """Whether there was something to compare, and not two entries that agree to hold no tensor."""
        return self.status == "different" or (self.status == "same" and bool(self.metrics))

    @property
    def judged_by_tolerance(self) -> bool:
        """Whether there was a tolerance, which a wider one could take the place of."""
        return self.tolerance is not None or bool(self.rule)

    def to_json(self) -> dict[str, Json]:
        """The row as docs/reference/json.md has it; what does not apply is absent."""
        named: dict[str, Json] = {
            "name": self.name,
            "family": self.family,
            "status": self.status,
            "index": self.index,
            "matched_by": self.matched_by,
            "counterpart": self.counterpart or None,
            "made_by": self.made_by or None,
            **self.metrics,
            "tolerance": self.rule or self.tolerance,
            "needed": self.needed,
            "why": self.why or None,
            "likely": self.likely or None,
        }
        return {column: value for column, value in named.items() if value is not None}
