"""Results of comparisons are a `Comparison` of two dumps, and a `Series` of several comparisons.

`Comparison` stores one row for each name and derives the verdict, the exit status and the sentence from the rows.
`Series` stores several comparisons, of the steps of two runs or of several candidates with one reference, and has the
same properties. Both are true where the dumps are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradscope.comparison.default_tolerances import FULL
from gradscope.comparison.diagnosis.divergence import Blame, Divergence, first_divergence
from gradscope.comparison.diagnosis.likely.different_batches import DifferentBatches
from gradscope.comparison.diagnosis.likely.losses.loss_difference import LossDifference
from gradscope.comparison.diagnosis.runs.run_differences import mode_difference
from gradscope.comparison.diagnosis.same_sentence import nothing_sentence, same_sentence
from gradscope.comparison.diagnosis.sentence import different_sentence, first_named
from gradscope.comparison.judging.rows import ComparisonRow, Status, Verdict
from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.comparison.pairing.matching import Match
from gradscope.dump.manifest.json_text import with_nonfinite_strings
from gradscope.dump.record import Json
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, FAMILIES, printable
from gradscope.naming.small_chart import SmallChart
from gradscope.naming.summary import Summary
from gradscope.naming.wording import counted

#: Version of the JSON that `to_json` returns; its keys are stable within one version.
SCHEMA: Final = 1

_STATUSES: Final[tuple[Status, ...]] = ("same", "different", "missing", "extra")

#: What each verdict says of two dumps.
VERDICTS: Final[Mapping[Verdict, str]] = {
    "same": "every tensor that both dumps have is within its tolerance, and none is missing that counts; exit status 0",
    "different": "a tensor is beyond its tolerance, or is in one dump only; exit status 1",
    "nothing compared": "no tensor of the one has a counterpart in the other, or none was selected; exit status 2",
}

#: The exit status of the command `compare`, by verdict.
EXIT_CODES: Final[Mapping[Verdict, int]] = {"same": 0, "different": 1, "nothing compared": 2}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """Comparison stores the rows of two dumps; it is true where the dumps are the same.

    Attributes:
        rows: One row for every name of either dump: the reference's in its order, then those of the candidate alone.
        blame: The consequences of the first divergence, and the layers that caused it.
        matches: How tensors were paired.
        losses: How the losses differ; None where they agree within tolerance, or are not both known.
        batches: How the batches differ; None where they do not, or where that is not known.
        models: A sentence that the models are not the same; "" where they may be.
        examples: The error of the per-example gradients over all parameters; None where not both dumps have such
            gradients, or all are equal.
        extent_differences: Sentences about what one capture recorded and the other did not.
        provenance_differences: `field`, `ref` and `cand` of each difference between the runs, likely causes first.
        program: The candidate's target and the SHA-256 of its file; None where the dump does not state both.
        has_layer_values: Whether the reference has values of layers, on which those of the candidate can be run.
        products: The coarser of the dtypes whose digits the factors of float32 products had, where a difference needs
            the tolerance of these; else "float32".

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> for name, scale in (("one.npz", 1.0), ("other.npz", 1.5)):
        ...     np.savez(name, kernel=np.eye(2) * scale, bias=np.zeros(2))
        >>> result = gs.compare(gs.load("one.npz"), gs.load("other.npz"))
        >>> result.verdict, [(row.name, row.status) for row in result.rows]
        ('different', [('kernel', 'different'), ('bias', 'same')])
    """

    rows: tuple[ComparisonRow, ...]
    blame: Blame = field(default_factory=Blame)
    matches: tuple[Match, ...] = ()
    losses: LossDifference | None = None
    batches: DifferentBatches | None = None
    models: str = ""
    examples: ExampleError | None = None
    extent_differences: tuple[str, ...] = ()
    provenance_differences: tuple[Mapping[str, Json], ...] = ()
    program: tuple[str, str] | None = None
    has_layer_values: bool = False
    products: str = FULL

    def __bool__(self) -> bool:
        return self.verdict == "same"

    def __repr__(self) -> str:
        return self.summary().one_line("Comparison")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns the verdict, and for each family how many tensors are the same."""
        counts = {
            family: Counter(row.status for row in self.rows if row.family == family) for family in _families(self)
        }
        rows = tuple((family, *(statuses[status] for status in _STATUSES)) for family, statuses in counts.items())
        return Summary(
            line=f"{self.verdict}: {self.sentence}",
            headings=("family", *_STATUSES),
            rows=rows,
            chart=SmallChart(title="rel_l2 along depth", lines=self._errors()),
        )

    def _errors(self) -> dict[str, list[float | None]]:
        """Returns the errors of activations and of their gradients, in execution order."""
        by_family = {name: {row.name: row for row in self.rows if row.family == name and row.compared}
                     for name in (ACTIVATION, ACTIVATION_GRAD)}  # fmt: skip
        every = {row.name: row.index for rows in by_family.values() for row in rows.values()}
        order = sorted(every, key=lambda name: every[name])
        return {
            family: [rows[name].needed if name in rows else None for name in order]
            for family, rows in by_family.items()
        }

    @property
    def verdict(self) -> Verdict:
        """Whether the dumps are the same; a name in one dump only is a difference unless it was allowed."""
        if not any(row.compared for row in self.rows):
            return "nothing compared"
        return "different" if any(row.counts and row.status != "same" for row in self.rows) else "same"

    @property
    def exit_code(self) -> int:
        """The exit status of a command: 0 same, 1 different, 2 nothing compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first_divergence(self) -> Divergence:
        """The first row over tolerance, forward and backward."""
        return first_divergence(self.rows)

    @property
    def first_named(self) -> ComparisonRow | None:
        """The row whose place the sentence names first: the first over tolerance, or what made it; None for none."""
        return first_named(self.first_divergence, self.blame)

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "nothing compared":
            return nothing_sentence(self.rows)
        if self.verdict == "same":
            return same_sentence(self.rows, self.losses, self.products)
        first = self.first_divergence
        # What follows from the mode is in the values, too: gradients alone differ for another reason.
        mode = "" if first.forward is None else mode_difference(self.provenance_differences)
        begin = "".join(f"{each}. " for each in (self.models, mode) if each)
        return begin + different_sentence(
            self.rows, first, self.blame, self.losses, self.products, batches=self.batches
        )

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON, as `compare --json` prints it: NaN and infinities are strings."""
        first = self.first_divergence
        names = {"forward": first.forward, "backward": first.backward}
        facts: dict[str, Json] = {
            "schema": SCHEMA,
            "command": "compare",
            "verdict": self.verdict,
            "sentence": self.sentence,
            "first_divergence": {direction: row.name for direction, row in names.items() if row is not None},
            **({"suspects": [row.name for row in self.blame.suspects]} if self.blame.suspects else {}),
            **({} if self.losses is None else {"losses": self.losses.to_json()}),
            "rows": [row.to_json() for row in self.rows],
            "provenance_differences": [dict(difference) for difference in self.provenance_differences],
            **({} if self.examples is None else {"examples": self.examples.to_json()}),
            **({"extent_differences": list(self.extent_differences)} if self.extent_differences else {}),
        }
        return {name: with_nonfinite_strings(fact) for name, fact in facts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesMember:
    """SeriesMember names one comparison of a series by its step, or by the candidate's file."""

    name: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Series stores several comparisons; it is true where all dumps are the same.

    Attributes:
        members: The comparisons in order.
        steps: Whether they compare the steps of two runs, in order.
        missing: Names of steps that only the reference has.
        extra: Names of steps that only the candidate has.
    """

    members: tuple[SeriesMember, ...]
    steps: bool = False
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def verdict(self) -> Verdict:
        """`same` where all comparisons are; `different` where one is, or where one run lacks a step."""
        verdicts = {member.comparison.verdict for member in self.members}
        if not verdicts or verdicts == {"nothing compared"}:
            return "nothing compared"
        return "same" if verdicts == {"same"} and not self.missing and not self.extra else "different"

    @property
    def exit_code(self) -> int:
        """The exit status of a command: 0 same, 1 different, 2 nothing compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first_different(self) -> SeriesMember | None:
        """The first member whose dumps are not the same; None where there is none."""
        return next((member for member in self.members if not member.comparison), None)

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if not self.members:
            return "Nothing compared: there is no step of one name on both sides."
        return f"{self._judgement()}{self._one_sided()}"

    def to_json(self) -> dict[str, Json]:
        """Returns the verdict of the series, and each comparison as JSON with its `name`."""
        first = self.first_different
        named: dict[str, Json] = {
            "schema": SCHEMA,
            "command": "compare",
            "verdict": self.verdict,
            "sentence": self.sentence,
            "first_different": None if first is None else first.name,
            "missing": list(self.missing),
            "extra": list(self.extra),
            "comparisons": [{"name": member.name, **member.comparison.to_json()} for member in self.members],
        }
        return {key: value for key, value in named.items() if value is not None}

    def _judgement(self) -> str:
        first, total = self.first_different, counted(len(self.members), "step" if self.steps else "candidate")
        if first is None:
            return f"{total} the same." if len(self.members) > 1 else f"{total}, the same."
        if self.steps:
            before = self.members.index(first)
            agreeing = f"{counted(before, 'step')} the same, then " if before else "From the first step on: "
            return f"{agreeing}`{printable(first.name)}` differs. {first.comparison.sentence}"
        names = [member.name for member in self.members if not member.comparison]
        return f"{len(names)} of {total} not the same: {_quoted(names)}. {first.comparison.sentence}"

    def _one_sided(self) -> str:
        sides = ((self.missing, "reference"), (self.extra, "candidate"))
        return "".join(f" Only in the {side}: {_quoted(names)}." for names, side in sides if names)


def _families(comparison: Comparison) -> list[str]:
    """Returns the families of the rows, in the order in which tables show them."""
    found = dict.fromkeys(row.family for row in comparison.rows)
    return [*(family for family in FAMILIES if family in found), *(each for each in found if each not in FAMILIES)]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{printable(name)}`" for name in names)
