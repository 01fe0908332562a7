"""The comparison of two dumps: every row, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gradscope.compare.blame import Blame
from gradscope.compare.divergence import Divergence, first_divergence
from gradscope.compare.examples import ExampleError
from gradscope.compare.pairing import Match
from gradscope.compare.rows import Row
from gradscope.compare.sentence import different_sentence, nothing_sentence, same_sentence
from gradscope.dump.record import Json

Verdict: TypeAlias = Literal["same", "different", "nothing compared"]

#: Version of the JSON that `to_json` gives; its keys are stable within one.
SCHEMA: Final = 1

#: The status that a command exits with.
EXIT_CODES: Final[Mapping[Verdict, int]] = {"same": 0, "different": 1, "nothing compared": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What comparing two dumps found; true where they are the same.

    Attributes:
        rows: One for every name of either dump: the reference's in its order, then what only the candidate has.
        blame: What follows from where the runs part, and who made it.
        matches: How tensors were paired.
        examples: The error of the gradients of each example, over all parameters; None where there are no such
            gradients on both sides, or all are equal.
        extent_differences: In what the two captures did not look at the same things, in sentences.
        provenance_differences: `field`, `ref` and `cand` of what the runs did not have in common, culprits first.
    """

    rows: tuple[Row, ...]
    blame: Blame = field(default_factory=Blame)
    matches: tuple[Match, ...] = ()
    examples: ExampleError | None = None
    extent_differences: tuple[str, ...] = ()
    provenance_differences: tuple[Mapping[str, Json], ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def verdict(self) -> Verdict:
        """Whether the dumps are the same; a name on one side only is a difference unless it was allowed."""
        if not any(row.compared for row in self.rows):
            return "nothing compared"
        return "different" if any(row.counts and row.status != "same" for row in self.rows) else "same"

    @property
    def exit_code(self) -> int:
        """The status a command exits with: 0 same, 1 different, 2 nothing compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first_divergence(self) -> Divergence:
        """Where the runs part, forward and backward."""
        return first_divergence(self.rows)

    @property
    def sentence(self) -> str:
        """The verdict for a human."""
        if self.verdict == "nothing compared":
            return nothing_sentence(self.rows)
        if self.verdict == "same":
            return same_sentence(self.rows)
        return different_sentence(self.rows, self.first_divergence, self.blame)

    def to_json(self) -> dict[str, Json]:
        """The comparison as cli.md has it; infinities are floats, which `dump.jsontext` spells out."""
        first = self.first_divergence
        names = {"forward": first.forward, "backward": first.backward}
        return {
            "schema": SCHEMA,
            "command": "compare",
            "verdict": self.verdict,
            "sentence": self.sentence,
            "first_divergence": {direction: row.name for direction, row in names.items() if row is not None},
            "rows": [row.to_json() for row in self.rows],
            "provenance_differences": [dict(difference) for difference in self.provenance_differences],
            **({} if self.examples is None else {"examples": self.examples.to_json()}),
            **({"extent_differences": list(self.extent_differences)} if self.extent_differences else {}),
        }
