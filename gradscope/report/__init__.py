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
    from gradscope.report.comparison import ComparisonReport
    from gradscope.report.difference import DifferenceReport
    from gradscope.report.inspection import InspectionReport, inspection_report
    from gradscope.report.isolation import IsolationReport
    from gradscope.report.ledger import LedgerReport
    from gradscope.report.proof import ProofReport
    from gradscope.report.query import Query
    from gradscope.report.render import Report, to_csv, to_json, to_markdown, to_text
    from gradscope.report.rows import Row, rows_of
    from gradscope.report.screen import Screen
    from gradscope.report.series import SeriesReport
    from gradscope.report.tensor import TensorReport, tensor_report
    from gradscope.report.whole_dump import DumpReport, dump_report

_HOMES = {
    "ComparisonReport": "comparison",
    "DifferenceReport": "difference",
    "DumpReport": "whole_dump",
    "InspectionReport": "inspection",
    "IsolationReport": "isolation",
    "LedgerReport": "ledger",
    "ProofReport": "proof",
    "Query": "query",
    "Report": "render",
    "Row": "rows",
    "Screen": "screen",
    "SeriesReport": "series",
    "TensorReport": "tensor",
    "dump_report": "whole_dump",
    "inspection_report": "inspection",
    "rows_of": "rows",
    "tensor_report": "tensor",
    "to_csv": "render",
    "to_json": "render",
    "to_markdown": "render",
    "to_text": "render",
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
