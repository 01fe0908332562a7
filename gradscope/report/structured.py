"""Rows for programs: JSON and CSV, every value in full.

One JSON object per command, its keys stable within a `schema` number. Absent means not applicable; null is never used;
NaN and infinities are strings in JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Final

from gradscope import naming
from gradscope.dump.jsontext import dumps, loads
from gradscope.dump.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.report.dump_report import DumpReport
from gradscope.report.rows import Row
from gradscope.stats import Finding

#: Grows when a key changes its meaning or goes away.
SCHEMA: Final = 1


def to_json(command: str, facts: Mapping[str, Json]) -> str:
    """The one object that a command prints.

    Args:
        command: The command's name.
        facts: What it has to say; NaN and infinities are allowed.

    Returns:
        JSON with an indentation of two spaces, ASCII only, and a line feed at the end.
    """
    document: Json = {"schema": SCHEMA, "command": command, **facts}
    return json.dumps(loads(dumps(document)), indent=2) + "\n"


def to_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """Rows as CSV with a heading of all their keys, in the order in which these first occur.

    Args:
        rows: Values by column; what is absent stays empty.

    Returns:
        Lines ended by line feeds; floats as Python writes them, lists as JSON, names made safe to print.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([naming.printable(name) for name in columns])
    writer.writerows([[_csv_cell(row.get(name)) for name in columns] for row in rows])
    return text.getvalue()


def dump_json(report: DumpReport, command: str) -> str:
    """The report of a dump as JSON.

    Args:
        report: The report.
        command: The command that prints it, `dump` or `show`.
    """
    return to_json(command, {**_facts(report.path, report.manifest), **_rows(report)})


def dump_csv(report: DumpReport) -> str:
    """The rows of a report as CSV."""
    return to_csv([row.to_json() for row in report.rows])


def finding_json(finding: Finding) -> dict[str, Json]:
    """A finding; where there is no source or iteration, there is no such key."""
    facts: dict[str, Json] = {"rule": finding.rule, "name": finding.name, "family": finding.family, "why": finding.why}
    if finding.source is not None:
        facts["source"] = finding.source
    if finding.iteration:
        facts["iteration"] = list(finding.iteration)
    return facts


def _facts(path: str, manifest: Manifest) -> dict[str, Json]:
    facts: dict[str, Json] = {
        "dump": path,
        "loss": manifest.loss,
        "ledger": dict(manifest.ledger.counts()),
        "self_check": None if manifest.self_check is None else dict(manifest.self_check),
        "timings": dict(manifest.timings),
        "provenance": dict(manifest.provenance),
        "note": manifest.note or None,
        "complete": manifest.complete,
        "tier": manifest.tier,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _rows(report: DumpReport) -> dict[str, Json]:
    return {
        "rows": [row.to_json() for row in report.rows],
        "findings": [finding_json(finding) for finding in report.findings],
    }


def _csv_cell(value: Json) -> str:
    if value is None:
        return ""
    return naming.printable(value) if isinstance(value, str) else dumps(value).strip('"')
