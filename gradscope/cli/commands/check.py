"""`gradscope check`: are a model's gradients right?"""

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
    asked: ModelOptions,
    no_cache: options.NoCache = False,
    written: FormatOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Hold gradients to finite differences in float64, to jax.grad, and to themselves run again.

    Functions with a custom differentiation rule are held to it one by one. The model file is imported and run with your
    rights. Exit status: 0 correct, 1 wrong, 2 nothing could be checked.
    """
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.jax_setup import set_up_jax
    from gradscope.cli.running.progress import Progress
    from gradscope.report import ProofReport

    request = asked.request(target)
    notes = set_up_jax(asked, cache=not no_cache)
    from gradscope.capturing.timings import Timings
    from gradscope.proof.proving import prove

    # What the model prints are remarks; standard output is for results.
    with redirect_stdout(sys.stderr), Progress(quiet=quiet) as progress:
        model = asked.model(target, request)
        arguments = asked.arguments(model)
        found = prove(model, arguments, Timings(progress.phase), seed=asked.seed)
        for sentence in (
            *(model.choices if verbose else ()),
            *(() if quiet else (*notes, *arguments.notes, *found.notes)),
        ):
            say(sentence)
    report = ProofReport(target=target, verdict=found.verdict, claims=[row.to_json() for row in found.rows])
    print_report(report, written.chosen)
    if found.verdict != "correct":
        raise typer.Exit(1 if found.verdict == "wrong" else 2)
