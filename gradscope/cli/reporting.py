"""Results in the format asked for, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.cli.options import Format
from gradscope.cli.printing import print_plain, print_text, screen

if TYPE_CHECKING:
    from gradscope.compare.comparison import Comparison
    from gradscope.dump.manifest import Manifest
    from gradscope.report.query import Query
    from gradscope.stats import Finding


def print_dump(
    command: str,
    path: Path,
    manifest: Manifest,
    findings: Sequence[Finding],
    query: Query,
    output_format: Format,
    *,
    fold: bool,
) -> None:
    """Print what a dump has to say."""
    from gradscope.report.dump_report import dump_report, dump_tables, lay_out_dump
    from gradscope.report.markdown import to_markdown
    from gradscope.report.structured import dump_csv, dump_json

    report = dump_report(str(path), manifest, tuple(findings), query)
    if output_format is Format.TABLE:
        print_text(lay_out_dump(report, screen(), fold=fold))
    elif output_format is Format.JSON:
        print_plain(dump_json(report, command))
    elif output_format is Format.CSV:
        print_plain(dump_csv(report))
    else:
        print_plain("\n".join(to_markdown(table) for table in dump_tables(report)))
