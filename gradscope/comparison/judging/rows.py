"""`ComparisonRow` stores the result for one name of two dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.comparison.pairing.matching import MatchedBy
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.naming import key_of
from gradscope.naming.summary import Summary

Status: TypeAlias = Literal["same", "different", "missing", "extra"]
Verdict: TypeAlias = Literal["same", "different", "nothing compared"]

#: What each status says of a tensor.
STATUSES: Final[Mapping[Status, str]] = MappingProxyType(
    {
        "same": "within its tolerance, or a difference that only rounding makes",
        "different": "beyond its tolerance",
        "missing": "in the reference only; `--allow-missing` excuses it",
        "extra": "in the candidate only; `--allow-missing` excuses it",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ComparisonRow:
    """ComparisonRow stores the result for one tensor.

    Attributes:
        name: Its layer or parameter path.
        family: Its family.
        status: `same`, `different`, `missing` (in the reference only) or `extra` (in the candidate only).
        index: Its execution index; the reference's where both dumps have one.
        matched_by: The pass that found its counterpart; None where there is none.
        counterpart: The candidate's name of the tensor, or its key where the family differs; "" where the names are
            equal. For a loop output that only the candidate has, the reference's names.
        made_by: The steps that made the counterpart, in words; "" for none.
        metrics: The metrics that apply, by column name.
        tolerance: The limit on `rel_l2`; None without a counterpart, in a bitwise comparison, and for other rules.
        rule: The expression of a rule that is not a limit on `rel_l2`; "" for none.
        needed: The smallest tolerance that would pass, inf where none would; None without a counterpart.
        why: Why the tensor is different, or by what it was judged instead of its elements; "" for no remark.
        likely: A clause that explains the difference (swapped, transposed, scaled); "" for none.
        explained: Whether that says what both programs compute of values that they have in common, so that nothing
            before it is needed to explain the difference.
        made_here: Whether its error is made by the layer itself, from inputs that are exact but for rounding, all of
            them paired; or by a step right before it without an entry, where not `reads_recorded`.
        reads_recorded: Whether what the layer reads is known: both programs state it, or the error is explained.
        kinked: Whether it is a gradient that is the same because rounding decides the signs of values on its way.
        accumulated: Whether it is the same because roundings on the way to it may add up to its error.
        inputs_paired: Whether all that it is computed from next is paired, as far as an error makes that matter.
        examples: The error of per-example gradients; None for other tensors.
        source: `file:line` of the value in the candidate's code, or else in the reference's; None where unknown.
        counts: Whether the row counts in the verdict; False for missing or extra names that are allowed or redundant.
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
    explained: bool = False
    made_here: bool = False
    reads_recorded: bool = True
    kinked: bool = False
    accumulated: bool = False
    inputs_paired: bool = True
    examples: ExampleError | None = None
    source: str | None = None
    counts: bool = True

    def __repr__(self) -> str:
        return self.summary().one_line("ComparisonRow")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns the status, and the metrics."""
        why = f" ({self.why})" if self.why else ""
        metrics = [(name, each) for name, each in self.metrics.items() if isinstance(each, str | int | float)]
        return Summary(
            line=f"{key_of(self.family, self.name)}: {self.status}{why}",
            headings=("metric", "value") if metrics else (),
            rows=tuple(metrics),
        )

    @property
    def compared(self) -> bool:
        """Whether metrics were compared; False also for two entries that both hold no tensor."""
        return self.status == "different" or (self.status == "same" and bool(self.metrics))

    @property
    def judged_by_tolerance(self) -> bool:
        """Whether the row was judged by a tolerance, so that a wider one could pass."""
        return self.tolerance is not None or bool(self.rule)

    @property
    def is_rounding(self) -> bool:
        """Whether the row is the same because its difference is within the floor of rounding."""
        return self.status == "same" and self.needed == 0.0 and as_float(self.metrics.get("rel_l2", 0.0)) > 0

    def to_json(self) -> dict[str, Json]:
        """Returns the row as JSON, without fields that do not apply."""
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
            "made_here": self.made_here or None,
        }
        return {column: value for column, value in named.items() if value is not None}
