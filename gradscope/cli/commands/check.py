"""`gradscope check` tests whether a model's gradients are right."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import FormatOptions


def check(
    target: options.Target,
    *,
    model_options: ModelOptions,
    tol: Annotated[
        float,
        typer.Option(
            "--tol",
            metavar="NUMBER",
            min=0.0,
            show_default=False,
            help="A relative error that a derivative may have in any case, such as that of an iterative solver.",
        ),
    ] = 0.0,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="NAME",
            help="A function whose rule is meant to be no derivative, as a straight-through estimator. Repeatable.",
        ),
    ] = None,
    no_cache: options.NoCache = False,
    format_options: FormatOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare gradients with finite differences in float64, with jax.grad, and with a second run.

    What stop_gradient cuts off counts as constant, and a line names the places: 'dump' says where all of a gradient
    ends, 'check' that the rest is right. Functions with a custom differentiation rule are compared with that rule one
    by one. A rule of an iterative solver may be as wrong as the solver's tolerance makes it, which is found by running
    the solver longer. The model file is imported and run with your rights. Exit status: 0 correct, 1 wrong, 2 nothing
    could be checked.
    """
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.presentation import ProofReport

    request = model_options.request(target)
    notes = set_up_jax(model_options, (target, "check"), cache=not no_cache)
    from gradscope.capturing.timings import Timings
    from gradscope.proof.proving import ProofOptions, prove

    # What the model prints are messages; standard output is for results.
    with stdout_to_stderr(), Progress(quiet=quiet) as progress:
        model = model_options.model(target, request)
        arguments = model_options.arguments(model)
        options = ProofOptions(seed=model_options.seed, tolerance=tol, allowed=tuple(allow or ()))
        found = prove(model, arguments, Timings(progress.phase), options)
        for sentence in (
            *(model.choices if verbose else ()),
            *(() if quiet else (*notes, *arguments.notes, *found.notes)),
        ):
            say(sentence)
    report = ProofReport(
        target=target,
        verdict=found.verdict,
        claims=[row.to_json() for row in found.rows],
        notes=found.notes,
        stopped=found.stopped,
    )
    print_report(report, format_options.chosen, target)
    if found.verdict != "correct":
        raise typer.Exit(1 if found.verdict == "wrong" else 2)
