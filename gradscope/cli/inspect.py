"""`gradscope inspect`: what a model is, without running it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from gradscope.cli import options
from gradscope.cli.modeloptions import ModelOptions
from gradscope.cli.reportoptions import FormatOptions, SelectionOptions


def inspect(
    target: options.Target,
    *,
    asked: ModelOptions,
    chosen: SelectionOptions,
    sort: options.Sort = None,
    written: FormatOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Tell layers, shapes, parameters, FLOPs and bytes of a model from its trace: nothing is compiled or run.

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
        arguments = asked.arguments(model)
        for sentence in (*(model.choices if verbose else ()), *(() if quiet else arguments.notes)):
            say(sentence)
        with user_code(f"loss of {model.name}"):
            found = inspect_loss(model.loss, *arguments.shapes)
    rows = [Row(family=fact.family, name=fact.name, values=fact.values) for fact in found.facts]
    print_report(inspection_report(target, arguments.batch_size, rows, found.totals, query=query), written.chosen)
