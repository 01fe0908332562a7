"""`gradscope inspect` describes a model without running it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.fetch_and_feed_options import FetchOptions
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import Format, SelectionOptions, refuse_two_formats

if TYPE_CHECKING:
    from gradscope.dump.manifest.manifest import Manifest
    from gradscope.presentation.render.graphs import Graph


class InspectionFormat(StrEnum):
    """An `InspectionFormat` is a format in which an inspection is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    DOT = "dot"
    MODEL_EXPLORER = "model-explorer"

    @property
    def is_graph(self) -> bool:
        """True for the formats of graphs, False for those of tables."""
        return self in (InspectionFormat.DOT, InspectionFormat.MODEL_EXPLORER)


def inspect(
    target: options.Target,
    *,
    model_options: ModelOptions,
    selection_options: SelectionOptions,
    ops: Annotated[
        bool, typer.Option("--ops", help="Show every operation, and not only layers.", rich_help_panel="What is shown")
    ] = False,
    fetch_options: FetchOptions,
    sort: options.Sort = None,
    full: options.Full = False,
    output_format: Annotated[
        InspectionFormat,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"How results are written to standard output: {', '.join(InspectionFormat)}; "
            "the last two are graphs of all operations.",
            rich_help_panel="Output",
        ),
    ] = InspectionFormat.TABLE,
    json: options.Json = False,
    gradients: Annotated[
        Path | None,
        typer.Option(
            metavar="DUMP",
            help="With --format model-explorer: write, in place of the graph, the overlay that colours it by this "
            "dump's gradient norms.",
            rich_help_panel="Output",
        ),
    ] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print layers, shapes, parameters, FLOPs and bytes of a model from its trace: nothing is compiled or run.

    On a terminal it is an overview of one screen; --full and every other place have all rows, and so has what you
    select. With --fetch, also print which part of the model those values need.

    The model file is imported with your rights: only inspect a model whose code you would run.
    """
    from gradscope.cli.printing import print_plain, print_report, say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.errors import UsageError
    from gradscope.presentation import Row, inspection_report
    from gradscope.presentation.render.graphs import Graph

    refuse_two_formats(output_format, json=json)
    file_format = InspectionFormat.JSON if json else output_format
    if gradients is not None and file_format is not InspectionFormat.MODEL_EXPLORER:
        raise UsageError("--gradients are an overlay for Model Explorer", hint="add --format model-explorer")
    norms = None if gradients is None else _manifest(gradients)
    request, query = model_options.request(target), selection_options.query(sort)
    set_up_jax(model_options, (target,), cache=False)
    from gradscope.inspection.inspect_loss import inspect_loss
    from gradscope.tracing.user_frames import user_code

    with stdout_to_stderr():  # what the model prints are messages
        model = model_options.model(target, request)
        trace_query = fetch_options.trace_query()
        arguments = model_options.arguments(model, partial=bool(trace_query))
        for sentence in (*(model.choices if verbose else ()), *(() if quiet else arguments.notes)):
            say(sentence)
        with user_code(f"loss of {model.name}"):
            found = inspect_loss(
                model.loss, *arguments.shapes, operations=ops or file_format.is_graph, query=trace_query
            )
            arguments.require(() if found.fragment is None else found.fragment.inputs)
    rows = [Row(family=fact.family, name=fact.name, facts=fact.values) for fact in found.facts]
    if file_format.is_graph:
        print_plain(_graph_text(Graph.of_rows(model.name, query(rows)), file_format, norms) + "\n")
        return
    fetch = None if found.fragment is None else found.fragment.to_json()
    overview = not (full or sort is not None or selection_options.is_set)
    report = inspection_report(
        target, arguments.batch_size, rows, found.totals, fetch=fetch, query=query, overview=overview
    )
    print_report(report, Format(file_format))


def _graph_text(graph: Graph, file_format: InspectionFormat, norms: Manifest | None) -> str:
    if norms is not None:
        return graph.overlay(norms)
    return graph.dot() if file_format is InspectionFormat.DOT else graph.model_explorer()


def _manifest(dump: Path) -> Manifest:
    from gradscope.dump.reader import open_dump
    from gradscope.stats import measured

    with open_dump(dump) as source:
        return measured(source)
