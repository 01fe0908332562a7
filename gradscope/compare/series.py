"""Series: several comparisons together, of the steps of two runs or of several candidates with one reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.compare.comparison import EXIT_CODES, SCHEMA, Comparison, Verdict
from gradscope.compare.wording import counted
from gradscope.dump.record import Json
from gradscope.naming import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One comparison of a series, and what it is called: a step, or the candidate's file."""

    name: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Several comparisons; true where all dumps are the same.

    Attributes:
        members: The comparisons in order.
        steps: Whether they are the steps of two runs, of which the first that differs tells most.
        missing: Names of steps that the reference alone has.
        extra: Names of steps that the candidate alone has.
    """

    members: tuple[Member, ...]
    steps: bool = False
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def verdict(self) -> Verdict:
        """The same where all are; different where one is, or a step is on one side only."""
        verdicts = {member.comparison.verdict for member in self.members}
        if not verdicts or verdicts == {"nothing compared"}:
            return "nothing compared"
        return "same" if verdicts == {"same"} and not self.missing and not self.extra else "different"

    @property
    def exit_code(self) -> int:
        """The status a command exits with, as of a comparison."""
        return EXIT_CODES[self.verdict]

    @property
    def first_different(self) -> Member | None:
        """The first of them that is not the same; None where all are."""
        return next((member for member in self.members if not member.comparison), None)

    @property
    def sentence(self) -> str:
        """The verdict for a human."""
        if not self.members:
            return "Nothing compared: there is no step of one name on both sides."
        return f"{self._judgement()}{self._one_sided()}"

    def to_json(self) -> dict[str, Json]:
        """The series: its verdict, and each comparison as cli.md has it with its `name`."""
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


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{printable(name)}`" for name in names)
