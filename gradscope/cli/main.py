"""The program: its commands, and the one way in and out.

A command's module declares options and calls what does the work; JAX, NumPy and rich are imported inside its function,
so that `--help`, `--version` and completion start at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from gradscope.cli.boundary import guarded
from gradscope.cli.compare import compare
from gradscope.cli.dump import dump
from gradscope.cli.recover import recover
from gradscope.cli.show import show
from gradscope.cli.verify import verify

app = typer.Typer(
    name="gradscope",
    help="Gradient inspection for JAX: what every layer computes and what flows back through it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (dump, show, compare, verify, recover):
    app.command()(command)


def _print_version(*, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gradscope {version('gradscope-jax')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda asked: _print_version(asked=asked), is_eager=True,
                           help="Show the version.")
    ] = False,
) -> None:  # fmt: skip
    pass


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(guarded(app, sys.argv[1:]))
