"""`gradscope inspect`: what a model is, without running it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from gradscope.cli import options
from gradscope.cli.inquiries import FragmentOptions
from gradscope.cli.modeloptions import ModelOptions
from gradscope.cli.reportoptions import FormatOptions, SelectionOptions


def inspect(
    target: options.Target,
    *,
    asked: ModelOptions,
    chosen: SelectionOptions,
    ops: Annotated[
        bool, typer.Option("--ops", help="Every operation, and not only layers.", rich_help_panel="What is shown")
    ] = False,
    questions: FragmentOptions,
    sort: options.Sort = None,
    written: FormatOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Tell layers, shapes, parameters, FLOPs and bytes of a model from its trace: nothing is compiled or run.

    With --fetch, which part of it a run for those values would need.

    The model file is imported with your rights: only inspect a model whose code you would run.
    """
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_report, say
    from gradscope.report import Row, inspection_report

    request, query = asked.request(target), chosen.query(sort)
    set_up_jax(asked, cache=False)
    from gradscope.inspection.inspecting import inspect_loss
    from gradscope.tracing.userframes import user_code

    with redirect_stdout(sys.stderr):  # what the model prints are remarks
        model = asked.model(target, request)
        inquiry = questions.inquiry()
        arguments = asked.arguments(model, partial=bool(inquiry))
        for sentence in (*(model.choices if verbose else ()), *(() if quiet else arguments.notes)):
            say(sentence)
        with user_code(f"loss of {model.name}"):
            found = inspect_loss(model.loss, *arguments.shapes, operations=ops, inquiry=inquiry)
            arguments.require(() if found.fragment is None else found.fragment.inputs)
    rows = [Row(family=fact.family, name=fact.name, values=fact.values) for fact in found.facts]
    fetch = None if found.fragment is None else found.fragment.to_json()
    report = inspection_report(target, arguments.batch_size, rows, found.totals, fetch=fetch, query=query)
    print_report(report, written.chosen)
