"""The report of a dump's ledger lists every site whose tensor is not in the dump, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import LedgerLine, Manifest
from gradscope.dump.record import Json
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.tables.facts import by_reason
from gradscope.presentation.tables.table import Column, Line, Table

SCHEMA: Final = 1
_COLUMNS: Final = (
    Column(heading="name", kind="name"),
    Column(heading="family", kind="text"),
    Column(heading="reason", kind="text"),
    Column(heading="detail", kind="text", priority=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """A `LedgerReport` presents the ledger of a dump.

    Attributes:
        path: The dump's file, as the user named it.
        manifest: Its manifest.
    """

    path: str
    manifest: Manifest

    def document(self, screen: Screen) -> Document:  # noqa: ARG002 - the same on every screen
        """Returns the table of missing tensors, and the counts."""
        missing = self.manifest.ledger.missing
        table = Table(title=f"Not in the dump ({len(missing):,})", columns=_COLUMNS, lines=tuple(map(_line, missing)))
        total = Note(label="tensors", text=by_reason(self.manifest.ledger.counts()))
        return (*((table,) if missing else ()), Notes(notes=(total, Note(label="dump", text=self.path))))

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, family, reason and detail of each missing tensor."""
        return [_row(line) for line in self.manifest.ledger.missing]

    def to_json(self) -> dict[str, Json]:
        """Returns rows and counts."""
        counts: dict[str, Json] = dict(self.manifest.ledger.counts())
        return {"schema": SCHEMA, "command": "show", "dump": self.path, "ledger": counts, "rows": list(self.rows())}


def _line(line: LedgerLine) -> Line:
    cells = (line.name, line.family, line.reason, line.detail or None)
    return Line(cells=cells, keys=(naming.key_of(line.family, line.name),))


def _row(line: LedgerLine) -> dict[str, Json]:
    row: dict[str, Json] = {"name": line.name, "family": line.family, "reason": line.reason}
    return row | ({"detail": line.detail} if line.detail else {})
