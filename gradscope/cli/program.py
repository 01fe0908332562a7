"""The program: its commands, and Typer's ways translated into ours.

A command's module declares options and calls what does the work; JAX, NumPy and rich are imported inside its function,
so that `--help`, `--version` and completion start at once.
"""

from __future__ import annotations

from typing import Annotated, cast

import typer

from gradscope.cli.calibrate import calibrate
from gradscope.cli.check import check
from gradscope.cli.compare import compare
from gradscope.cli.dump import dump
from gradscope.cli.grouping import with_groups
from gradscope.cli.inspect import inspect
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.isolate import isolate
from gradscope.cli.operations import SpelledOut
from gradscope.cli.recover import recover
from gradscope.cli.show import show
from gradscope.cli.verify import verify
from gradscope.errors import UsageError

#: What Typer raises for a wrong command line. It carries a click of its own and exports only this one of its errors.
_WrongCommandLine = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

app = typer.Typer(
    name="gradscope",
    help="Gradient inspection for JAX: what every layer computes and what flows back through it.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (dump, show, compare, isolate, calibrate, inspect, check, verify, recover):
    app.command(cls=SpelledOut if command is dump else None)(with_groups(command))


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gradscope {version('gradscope-jax')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has answered it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def run(interrupts: Interrupts) -> int:
    """Do what the command line asks; returns the exit status.

    Args:
        interrupts: Where a command registers what has to be cleaned up after when it is interrupted.

    Raises:
        UsageError: The command line is wrong.
    """
    try:
        return app(prog_name="gradscope", obj=interrupts, standalone_mode=False) or 0
    except _WrongCommandLine as error:
        raise _translated(error) from error


def _translated(error: typer.BadParameter) -> UsageError:
    message = " ".join(error.format_message().split()).rstrip(".")
    command = "gradscope" if error.ctx is None else error.ctx.command_path
    return UsageError(message[:1].lower() + message[1:], hint=f"'{command} --help' tells all options")
