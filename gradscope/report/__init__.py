"""Reports: facts about dumps as tables, for a terminal, a pipe, a pull request or a program. Never imports JAX.

Vocabulary, in the order in which data flows:

- A *row* is what is known of one tensor: its family, its name, and values by column name. There is one row for every
  family and name of a dump; a `Query` chooses and orders them.
- A *table* is columns and lines of values. A *line* may show two rows side by side, a value and its gradient, or fold
  the iterations of a loop; it knows whose values it shows. A *remark* is a sentence with a label.
- A *document* is tables and remarks: all that people read.
- A *report* is what one command has to say: `DumpReport`, `TensorReport`, `LedgerReport`, `ComparisonReport`,
  `IsolationReport`, `InspectionReport`, `ProofReport`. Each can be a document, rows, or JSON, and `to_text`,
  `to_markdown`, `to_json` and `to_csv` render any of them.
- A *graph* is an inspection's operations as nodes (`graphs`), in the languages of two viewers.

Nothing here prints or opens a file. Only names that went through `Screen.show` or an escape of Markdown, JSON, CSV or
dot leave this package, and in rich they are `Text`, never markup: names come from strangers' files.

Why tables are laid out here and not by rich (2026-11): one layout serves terminal and pipe, columns give way by
importance instead of all shrinking, and a thousand lines take 40 ms instead of a second.

Why names are imported on first use (2026-11): what each command starts with is then only its own report; that of a
comparison needs no statistics of tensors, which take 40 ms to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.report.render.formats import Report, to_csv, to_json, to_markdown, to_text
    from gradscope.report.render.screen import Screen
    from gradscope.report.reports.comparison import ComparisonReport
    from gradscope.report.reports.difference import DifferenceReport
    from gradscope.report.reports.inspection import InspectionReport, inspection_report
    from gradscope.report.reports.isolation import IsolationReport
    from gradscope.report.reports.ledger import LedgerReport
    from gradscope.report.reports.proof import ProofReport
    from gradscope.report.reports.series import SeriesReport
    from gradscope.report.reports.tensor import TensorReport, tensor_report
    from gradscope.report.reports.whole_dump import DumpReport, dump_report
    from gradscope.report.tables.dump_rows import Row, rows_of
    from gradscope.report.tables.query import Query

_HOMES = {
    "ComparisonReport": "reports.comparison",
    "DifferenceReport": "reports.difference",
    "DumpReport": "reports.whole_dump",
    "InspectionReport": "reports.inspection",
    "IsolationReport": "reports.isolation",
    "LedgerReport": "reports.ledger",
    "ProofReport": "reports.proof",
    "Query": "tables.query",
    "Report": "render.formats",
    "Row": "tables.dump_rows",
    "Screen": "render.screen",
    "SeriesReport": "reports.series",
    "TensorReport": "reports.tensor",
    "dump_report": "reports.whole_dump",
    "inspection_report": "reports.inspection",
    "rows_of": "tables.dump_rows",
    "tensor_report": "reports.tensor",
    "to_csv": "render.formats",
    "to_json": "render.formats",
    "to_markdown": "render.formats",
    "to_text": "render.formats",
}

__all__ = [
    "ComparisonReport",
    "DifferenceReport",
    "DumpReport",
    "InspectionReport",
    "IsolationReport",
    "LedgerReport",
    "ProofReport",
    "Query",
    "Report",
    "Row",
    "Screen",
    "SeriesReport",
    "TensorReport",
    "dump_report",
    "inspection_report",
    "rows_of",
    "tensor_report",
    "to_csv",
    "to_json",
    "to_markdown",
    "to_text",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope.report' has no attribute {name!r}")
    return getattr(import_module(f"gradscope.report.{_HOMES[name]}"), name)
