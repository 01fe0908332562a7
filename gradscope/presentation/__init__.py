"""Reports present facts about dumps and models, for a terminal, a pipe, a pull request or a program. Never imports JAX.

Data goes through the sub-packages in this order:

1. `tables`: facts become rows of values, and rows become tables.
2. `reports`: the result of one command becomes a *report*: `DumpReport`, `TensorReport`, `LedgerReport`,
   `ComparisonReport`, `SeriesReport`, `MeshReport`, `DifferenceReport`, `IsolationReport`, `InspectionReport`,
   `ProofReport`, `ExplanationReport`, `RunReport`, `RunTensorReport`, `RunDivergenceReport`,
   `WatchReport`. Each can be a document, rows, or JSON.
3. `render`: `to_text`, `to_markdown`, `to_json` and `to_csv` render any report, `to_github` those with annotations,
   `to_junit` comparisons.
   `graphs` renders an inspection for graph viewers.
4. `page`: `dump_page`, `comparison_page` and `run_page` make pages for a browser, and `page_html` the file of one;
   `html_parts` has it in parts.

Nothing here prints or opens a file. Only names that went through `Screen.show` or an escape of Markdown, JSON, CSV or
dot leave this package, and in rich they are `Text`, never markup: names come from untrusted files.

Why names are imported on first use (2026-11): each command then starts with only its own report; the report of a
comparison needs no statistics of tensors, which take 40 ms to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.presentation.page.comparison_page import Compared, comparison_page
    from gradscope.presentation.page.dump_page import dump_page
    from gradscope.presentation.page.html_page import html_parts, page_html
    from gradscope.presentation.page.page_parts import PageMaker
    from gradscope.presentation.page.run_page import ComparedRun, run_page
    from gradscope.presentation.render.formats import Report, to_csv, to_github, to_json, to_junit, to_markdown, to_text
    from gradscope.presentation.render.screen import Screen
    from gradscope.presentation.reports.comparing.compared_runs import RunDivergenceReport
    from gradscope.presentation.reports.comparing.comparison import ComparisonReport
    from gradscope.presentation.reports.comparing.difference import DifferenceReport
    from gradscope.presentation.reports.comparing.isolation import IsolationReport
    from gradscope.presentation.reports.comparing.mesh_report import MeshReport
    from gradscope.presentation.reports.comparing.series import SeriesReport
    from gradscope.presentation.reports.dump_report import DumpReport, dump_report
    from gradscope.presentation.reports.explaining.explanation import ExplanationReport, explanation_report
    from gradscope.presentation.reports.inspection import InspectionReport, inspection_report
    from gradscope.presentation.reports.ledger import LedgerReport
    from gradscope.presentation.reports.proof import ProofReport
    from gradscope.presentation.reports.runs.run_report import RunReport, step_report, trends_report
    from gradscope.presentation.reports.runs.run_watch import WatchReport, watch_report
    from gradscope.presentation.reports.runs.series_report import RunTensorReport, run_tensor_report
    from gradscope.presentation.reports.runs.which_tensors import Which
    from gradscope.presentation.reports.tensor import TensorReport, tensor_report
    from gradscope.presentation.tables.dump_rows import Row, rows_of
    from gradscope.presentation.tables.facts import MAY_BE_MEANT, doubts
    from gradscope.presentation.tables.query import Query

_HOMES = {
    "Compared": "page.comparison_page",
    "ComparedRun": "page.run_page",
    "ComparisonReport": "reports.comparing.comparison",
    "DifferenceReport": "reports.comparing.difference",
    "DumpReport": "reports.dump_report",
    "ExplanationReport": "reports.explaining.explanation",
    "InspectionReport": "reports.inspection",
    "IsolationReport": "reports.comparing.isolation",
    "LedgerReport": "reports.ledger",
    "MeshReport": "reports.comparing.mesh_report",
    "ProofReport": "reports.proof",
    "PageMaker": "page.page_parts",
    "MAY_BE_MEANT": "tables.facts",
    "Query": "tables.query",
    "Report": "render.formats",
    "Row": "tables.dump_rows",
    "RunDivergenceReport": "reports.comparing.compared_runs",
    "RunReport": "reports.runs.run_report",
    "RunTensorReport": "reports.runs.series_report",
    "Screen": "render.screen",
    "SeriesReport": "reports.comparing.series",
    "TensorReport": "reports.tensor",
    "WatchReport": "reports.runs.run_watch",
    "Which": "reports.runs.which_tensors",
    "comparison_page": "page.comparison_page",
    "doubts": "tables.facts",
    "dump_page": "page.dump_page",
    "dump_report": "reports.dump_report",
    "explanation_report": "reports.explaining.explanation",
    "inspection_report": "reports.inspection",
    "html_parts": "page.html_page",
    "page_html": "page.html_page",
    "rows_of": "tables.dump_rows",
    "run_page": "page.run_page",
    "run_tensor_report": "reports.runs.series_report",
    "step_report": "reports.runs.run_report",
    "tensor_report": "reports.tensor",
    "to_csv": "render.formats",
    "to_github": "render.formats",
    "to_json": "render.formats",
    "to_junit": "render.formats",
    "to_markdown": "render.formats",
    "to_text": "render.formats",
    "trends_report": "reports.runs.run_report",
    "watch_report": "reports.runs.run_watch",
}

__all__ = [
    "MAY_BE_MEANT",
    "Compared",
    "ComparedRun",
    "ComparisonReport",
    "DifferenceReport",
    "DumpReport",
    "ExplanationReport",
    "InspectionReport",
    "IsolationReport",
    "LedgerReport",
    "MeshReport",
    "PageMaker",
    "ProofReport",
    "Query",
    "Report",
    "Row",
    "RunDivergenceReport",
    "RunReport",
    "RunTensorReport",
    "Screen",
    "SeriesReport",
    "TensorReport",
    "WatchReport",
    "Which",
    "comparison_page",
    "doubts",
    "dump_page",
    "dump_report",
    "explanation_report",
    "html_parts",
    "inspection_report",
    "page_html",
    "rows_of",
    "run_page",
    "run_tensor_report",
    "step_report",
    "tensor_report",
    "to_csv",
    "to_github",
    "to_json",
    "to_junit",
    "to_markdown",
    "to_text",
    "trends_report",
    "watch_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope.presentation' has no attribute {name!r}")
    return getattr(import_module(f"gradscope.presentation.{_HOMES[name]}"), name)
