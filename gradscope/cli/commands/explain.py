"""`gradscope explain` says what a column, a metric, a finding, a reason of the ledger or another printed word is."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.cli.commands import COMMANDS
from gradscope.cli.options.completion import explained_names
from gradscope.cli.options.report_options import FormatOptions
from gradscope.cli.running.blas import keep_single_threaded


def explain(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="A column such as bwd_gain, a metric such as rel_l2, a finding such as vanishing, an alarm such as "
            "loss-spike, a reason such as opaque or dead units, a family, a status, a verdict; without it, all.",
            autocompletion=explained_names,
        ),
    ] = None,
    *,
    format_options: FormatOptions,
) -> None:
    """Say what a column, metric, finding or reason is: formula, unit, threshold, and what to do. Needs no JAX."""
    keep_single_threaded()
    from gradscope.cli.printing import print_report
    from gradscope.errors import UsageError
    from gradscope.presentation import explanation_report

    wanted = " ".join(name) if name else None
    try:
        report = explanation_report(wanted)
    except UsageError as error:
        if wanted not in COMMANDS:
            raise
        raise UsageError(error.message, hint=f"'gradscope help {wanted}' describes the command") from None
    print_report(report, format_options.chosen)
