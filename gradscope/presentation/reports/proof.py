"""The report of a proof shows the verdict first, then every claim."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.naming.wording import brief, counted
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import BAD, DOUBTFUL, GOOD, Screen
from gradscope.presentation.render.text_layout import hidden_columns
from gradscope.presentation.tables.table import Column, Line, Table, column

#: Version of the JSON: it grows when a key changes its meaning or goes away.
SCHEMA: Final = 1

#: What each outcome of a claim means, as a clause.
OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "correct": "the derivative is as near to finite differences as their errors and the solvers' allow",
        "wrong": "the derivative is farther from finite differences than any of that explains",
        "excused": "the derivative is made by a rule that `--allow` names, which is meant to be no derivative",
        "not smooth here": "the function has a kink, a jump or a chaotic line there, where no derivative can be right",
        "not checked": "finite differences are too inexact there, or the loss is not finite",
    }
)
_WHAT: Final = Column(heading="what", kind="name")
_WHY: Final = column("why", 1, "text")
_COLUMNS: Final = (
    column("status", 0, "words"),
    column("error", 1),
    column("expected", 2),
    _WHY,
    column("source", 3, "text"),
)
_STYLES: Final = MappingProxyType({"correct": GOOD, "wrong": BAD, "nothing checked": DOUBTFUL})


#: What each verdict of a proof says.
PROOF_VERDICTS: Final[Mapping[str, str]] = {
    "correct": "every gradient that could be checked is that of finite differences; exit status 0",
    "wrong": "a gradient, or a function's own rule, differs from finite differences by more than they err; exit status "
    "1",
    "nothing checked": "no claim could be checked; exit status 2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofReport:
    """A `ProofReport` presents the claims of `gradscope check`.

    Attributes:
        target: The model, as the user named it.
        verdict: The result of all claims together.
        claims: A row per claim: what, error, expected, status, source, arguments, factor, why, allow.
        notes: Sentences about how the claims were checked, which are messages elsewhere.
        stopped: Where the loss keeps values constant.
    """

    target: str
    verdict: str
    claims: Sequence[Mapping[str, Json]]
    notes: Sequence[str] = ()
    stopped: Sequence[str] = ()

    def document(self, screen: Screen) -> Document:
        """Returns the verdict and the table of claims, and below it the reasons for which a screen has no column."""
        verdict = Notes(
            notes=(Note(label=self.verdict, text=self._sentence(), style=_STYLES[self.verdict]), *self._meant())
        )
        table = self._table(_COLUMNS)
        if _WHY.heading not in hidden_columns(table, screen):
            return verdict, table
        first = next(iter(self._wrong()), None)  # which the verdict has
        reasons = [each for each in self.claims if "why" in each and each is not first]
        notes = tuple(Note(label=str(each["status"]), text=f"{each['what']}: {each['why']}") for each in reasons)
        others = [each for each in _COLUMNS if each is not _WHY]
        return verdict, self._table(others), Notes(title="Why", notes=notes)

    def _meant(self) -> Iterator[Note]:
        """Yields how a wrong rule that may be meant so is excused."""
        allowed = dict.fromkeys(str(row["allow"]) for row in self._wrong() if "allow" in row)
        if allowed:
            options = " ".join(f"--allow {shlex.quote(name)}" for name in allowed)
            yield Note(
                label="meant?",
                text=f"{options} excuses what is no derivative on purpose: a straight-through "
                "estimator, a gradient that is reversed or clipped",
            )

    def _table(self, columns: Sequence[Column]) -> Table:
        lines = tuple(
            Line(cells=(str(row["what"]), *(each.cell(row) for each in columns)), keys=(str(row["what"]),))
            for row in self.claims
        )
        title = f"Claims ({len(lines):,})"
        return Table(title=title, columns=(_WHAT, *columns), lines=lines, in_order=False, cuts_names=False)

    def _wrong(self) -> list[Mapping[str, Json]]:
        return [row for row in self.claims if row["status"] == "wrong"]

    def _sentence(self) -> str:
        counts = Counter(str(row["status"]) for row in self.claims)
        wrong = [f"{row['what']} ({row['why']})" if "why" in row else str(row["what"]) for row in self._wrong()]
        others = [naming.split_key(str(row["what"]))[0] for row in self._wrong()[1:]]
        noun = "gradient" if all(map(naming.is_gradient, others)) else "more claim"
        more = f" and {counted(len(others), noun)}" if others else ""
        claims = ", ".join(f"{number} {status}" for status, number in counts.items())
        return f"{wrong[0]}{more}; claims: {claims}" if wrong else f"claims: {claims}"

    def annotations(self) -> list[Annotation]:
        """Returns the wrong claims next to their source lines, or the verdict."""
        wrong = [
            Annotation(
                level="error",
                title="gradscope: wrong gradient",
                message=_sentence(row),
                source=str(row["source"]) if "source" in row else None,
            )
            for row in self._wrong()
        ]
        verdict = Annotation(level="notice", title="gradscope", message=f"{self.verdict}: {self._sentence()}")
        return wrong or [verdict]

    def rows(self) -> Sequence[Mapping[str, Json]]:
        """Returns what, error, expected, status, source, arguments, factor, why and allow of each claim."""
        return self.claims

    def to_json(self) -> dict[str, Json]:
        """Returns verdict, rows, and what is said of them."""
        told = {"notes": [*self.notes], "stopped": [*self.stopped]}
        return {
            "schema": SCHEMA,
            "command": "check",
            "target": self.target,
            "verdict": self.verdict,
            "rows": [dict(row) for row in self.claims],
            **{name: list[Json](each) for name, each in told.items() if each},
        }


def _sentence(row: Mapping[str, Json]) -> str:
    why = f"; {row['why']}" if "why" in row else ""
    return f"{row['what']}: the error is {_brief(row.get('error'))}, expected {_brief(row.get('expected'))}{why}"


def _brief(number: Json) -> str:
    return brief(number) if isinstance(number, int | float) else str(number)
