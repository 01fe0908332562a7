"""`gradscope check` tests whether a model's gradients are right."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import FormatOptions


def check(
    target: options.Target,
    *,
    model_options: ModelOptions,
    no_cache: options.NoCache = False,
    format_options: FormatOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare gradients with finite differences in float64, with jax.grad, and with a second run.

    Functions with a custom differentiation rule are compared with that rule one by one. The model file is imported and
    run with your rights. Exit status: 0 correct, 1 wrong, 2 nothing could be checked.
    """
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.jax_setup import set_up_jax
    from gradscope.cli.running.progress import Progress
    from gradscope.report import ProofReport

    request = model_options.request(target)
    notes = set_up_jax(model_options, cache=not no_cache)
    from gradscope.capturing.timings import Timings
    from gradscope.proof.proving import prove

    # What the model prints are messages; standard output is for results.
    with redirect_stdout(sys.stderr), Progress(quiet=quiet) as progress:
        model = model_options.model(target, request)
        arguments = model_options.arguments(model)
        found = prove(model, arguments, Timings(progress.phase), seed=model_options.seed)
        for sentence in (
            *(model.choices if verbose else ()),
            *(() if quiet else (*notes, *arguments.notes, *found.notes)),
        ):
            say(sentence)
    report = ProofReport(target=target, verdict=found.verdict, claims=[row.to_json() for row in found.rows])
    print_report(report, format_options.chosen)
    if found.verdict != "correct":
        raise typer.Exit(1 if found.verdict == "wrong" else 2)
