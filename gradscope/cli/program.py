"""The program builds its commands with Typer and translates Typer's errors into ours.

A command's module declares options and calls the function that does the work. JAX, NumPy and rich are imported inside
its function, so that `--help`, `--version` and completion start at once. Only the module of the requested command is
imported: declaring the options of all of them takes a twentieth of a second.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer

from gradscope.cli.commands import COMMANDS
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.options.grouping import GroupedHelpCommand, with_groups, with_parameters
from gradscope.cli.options.shared import Traceback, remember_start
from gradscope.cli.running.version import VERSION_OPTIONS, print_version
from gradscope.errors import UsageError

#: The most columns of `--help`; longer lines are hard to read. Typer takes no fewer than 50, whatever the terminal has.
_HELP_COLUMNS: Final = 100
#: Columns that Typer leaves free at the right, and the fewest that it can lay out.
_HELP_MARGIN: Final = 2
_FEWEST_HELP_COLUMNS: Final = 30

#: What separates two sentences.
_SENTENCE_END: Final = re.compile(r"(?<=[.?])\s+")

#: How Typer ends the message of an option that takes a number and got something else.
_NO_NUMBER: Final = re.compile(r"is not (a valid (int|integer|float)( range)?|in the range \S+)$")

#: The error that Typer raises for a wrong command line. Typer has a copy of click and exports only this error of it.
_WrongCommandLine = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


def _print_version(requested: bool) -> None:
    if requested:
        print_version()
        raise typer.Exit


def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option(*VERSION_OPTIONS, callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def _program(commands: Iterable[str]) -> typer.Typer:
    """Returns the program with these commands."""
    app = typer.Typer(
        name="gradscope",
        help="Gradient inspection for JAX: what every layer computes and what flows back through it.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": _help_columns()},
    )
    app.callback()(_options)
    for name in commands:
        command = getattr(import_module(f"gradscope.cli.commands.{COMMANDS[name]}"), name)
        text = _help_text(command.__doc__ or "")
        app.command(cls=_class_of(name), help=text, short_help=_SENTENCE_END.split(text, maxsplit=1)[0])(
            _without_file_checks(_with_traceback(with_groups(command)))
        )
    app.command("help", cls=GroupedHelpCommand)(_help)
    return app


def _help_columns() -> int:
    """Returns the columns of `--help`: those of the terminal, as far as its lines are readable."""
    columns = min(shutil.get_terminal_size().columns, _HELP_COLUMNS) - _HELP_MARGIN
    return max(columns, _FEWEST_HELP_COLUMNS)


def _command_names() -> list[str]:
    return list(COMMANDS)


def _help_text(docstring: str) -> str:
    """Returns a docstring as Typer lays it out: a paragraph is one line, and an indented one is kept as it is."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    kept = "\b\n"
    return "\n\n".join(kept + each if each.startswith(" ") else " ".join(each.split()) for each in paragraphs)


def _help(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMAND", help="A command; without it, the program itself.", autocompletion=_command_names
        ),
    ] = None,
) -> None:
    """Show the help of a command, as COMMAND --help does."""
    words = ["--help"] if command is None else [command, "--help"]
    _program(COMMANDS)(words, prog_name="gradscope", obj=context.obj, standalone_mode=False)


def _with_traceback(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that also takes `--traceback`."""

    # The error boundary looks for the option by itself: it also applies where the arguments cannot be parsed.
    @functools.wraps(command)
    def called(traceback: bool, **values: Any) -> None:  # noqa: ARG001
        command(**values)

    option = inspect.Parameter("traceback", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Traceback)
    return with_parameters(called, [*inspect.signature(command).parameters.values(), option])


def _without_file_checks(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose paths Typer does not check."""
    # The code that opens a file reports that it cannot be read, with our exit status.
    for annotation in command.__annotations__.values():
        for parameter in getattr(annotation, "__metadata__", ()):
            parameter.readable = False
    return command


def _class_of(command: str) -> type[GroupedHelpCommand]:
    """Returns the class that parses a command's arguments."""
    if command != "dump":
        return GroupedHelpCommand
    from gradscope.cli.options.observation_options import OptionalValueCommand

    return OptionalValueCommand


def run(interrupts: Interrupts) -> int:
    """Runs the command of the command line and returns the exit status.

    Args:
        interrupts: Receives the functions that clean up when the command is interrupted.

    Returns:
        The exit status.

    Raises:
        UsageError: The command line is wrong.
    """
    remember_start()
    requested = [each for each in sys.argv[1:2] if each in COMMANDS]
    try:
        return _program(requested or COMMANDS)(prog_name="gradscope", obj=interrupts, standalone_mode=False) or 0
    except _WrongCommandLine as error:
        raise _translated(error, " ".join(["gradscope", *requested])) from error


def _translated(error: typer.BadParameter, requested: str) -> UsageError:
    message = " ".join(error.format_message().split()).rstrip(".")
    message = _NO_NUMBER.sub(lambda _: f"is not {_accepted(error)}", message)
    # The error of an option without its argument has no context.
    command = requested if error.ctx is None else error.ctx.command_path
    meant = _abbreviated(error)
    hint = _one_at_a_time(error, command) or f"'{command} --help' lists all options"
    return UsageError(
        message[:1].lower() + message[1:], hint=f"did you mean {' or '.join(meant)}? {hint}" if meant else hint
    )


def _one_at_a_time(error: typer.BadParameter, command: str) -> str:
    """Returns what to do with several paths for a command that takes one, as a shell makes them of a pattern; or ""."""
    if error.ctx is None or "unexpected extra argument" not in error.message:
        return ""
    arguments = [each for each in error.ctx.command.params if each.param_type_name == "argument"]
    names = [each.make_metavar(error.ctx) for each in arguments]
    if len(names) != 1:
        return ""
    compared = ", or compare them with 'gradscope compare'" if error.ctx.info_name == "show" else ""
    return f"'{command}' takes one {names[0]}: name one at a time{compared}"


def _accepted(error: typer.BadParameter) -> str:
    """Returns which numbers an option takes, in words."""
    kind: Any = None if error.param is None else error.param.type
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    limits = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
    number = "a whole number" if "int" in getattr(kind, "name", "") else "a number"
    return " of ".join(filter(None, (number, " and ".join(filter(None, limits)))))


def _abbreviated(error: typer.BadParameter) -> list[str]:
    """Returns the options whose words begin with the letters of one that does not exist: `--lr` for a learning rate."""
    name = getattr(error, "option_name", None)
    if error.ctx is None or not isinstance(name, str):
        return []
    options = [each for parameter in error.ctx.command.params for each in parameter.opts]
    return [each for each in options if "".join(word[:1] for word in each.strip("-").split("-")) == name.strip("-")]
