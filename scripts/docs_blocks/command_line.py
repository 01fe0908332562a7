"""Tables of the command line: commands, options, exit statuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import typer.main

from gradscope import errors
from gradscope.cli import error_boundary, program
from scripts.docs_blocks.markdown import code, first_sentence, table


@cache
def commands() -> dict[str, Any]:
    """The commands as typer parses them, by name."""
    return vars(typer.main.get_command(program._program(program.COMMANDS)))["commands"]


def option_row(option: Any) -> tuple[str, str, str]:
    spellings = "/".join([*option.opts, *option.secondary_opts]) if option.secondary_opts else ", ".join(option.opts)
    metavar = "" if option.is_flag else f" {option.metavar or value_name(option)}"
    return f"`{spellings}{metavar}`", option.help, shown_default(option)


def value_name(option: Any) -> str:
    choices = getattr(option.type, "choices", None)
    return "|".join(map(str, choices)) if choices else "X" if option.type.name.startswith("float") else "N"


def shown_default(option: Any) -> str:
    default = getattr(option.default, "value", option.default)
    return "" if option.is_flag or default in (None, [], ()) else code(default)


def options_of(command: Any) -> list[Any]:
    options = [each for each in command.params if hasattr(each, "is_flag") and each.opts[0][0] == "-"]
    return [each for each in options if not each.hidden]


def shared_options() -> Counter[tuple[str, str, str]]:
    """How many commands take each option."""
    return Counter(option_row(option) for command in commands().values() for option in options_of(command))


def shared_options_table() -> str:
    rows = []
    for row, times in shared_options().items():
        if times > 1:
            takers = (name for name, each in commands().items() if row in map(option_row, options_of(each)))
            rows.append((row[0], row[1], row[2], code(*takers)))
    return table(["option", "meaning", "default", "commands"], rows)


def commands_sections() -> str:
    times = shared_options()
    return "\n\n".join(command_section(name, command, times) for name, command in commands().items())


def command_section(name: str, command: Any, times: Counter[tuple[str, str, str]]) -> str:
    arguments = [each for each in command.params if each.opts[0][0] != "-"]
    rows = [option_row(option) for option in options_of(command)]
    own = [row for row in rows if times[row] == 1]
    shared = [row[0].strip("`").partition(",")[0].partition("/")[0].partition(" ")[0] for row in rows if times[row] > 1]
    usage = " ".join(["gradscope", name, *(each.metavar for each in arguments), "[OPTIONS]"])
    parts = [
        f"### `{name}`",
        f"    {usage}",
        command.help.replace("\b\n", ""),
        table(["argument", "meaning"], ((code(each.metavar), each.help) for each in arguments)),
        table(["option", "meaning", "default"], own) if own else "",
        f"Shared options: {code(*shared)}." if shared else "",
    ]
    return "\n\n".join(filter(None, parts))


def exit_statuses() -> str:
    rows = [
        ("0", "Done, or the same within tolerance.", ""),
        (
            "1",
            "Different, a wrong gradient, or a finding that `--check` names; with `--strict`, something is missing.",
            "",
        ),
    ]
    kinds = sorted(errors.GradscopeError.__subclasses__(), key=lambda each: each.exit_code)
    rows += [(str(kind.exit_code), first_sentence(kind.__doc__), code(kind.__name__)) for kind in kinds]
    rows[2] = (rows[2][0], f"{rows[2][1]} Also: nothing could be compared, or checked.", rows[2][2])
    rows += [
        (str(error_boundary.BUG), "A bug of gradscope; the message states what to report.", ""),
        ("129", "Ended by SIGHUP: the terminal was closed.", ""),
        (str(error_boundary.INTERRUPTED), "Interrupted by Ctrl-C.", ""),
        (str(error_boundary.BROKEN_PIPE), "The reader of standard output has gone away, as in `| head`.", ""),
        ("143", "Ended by SIGTERM.", ""),
    ]
    return table(["status", "meaning", "exception in Python"], rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "shared-options": shared_options_table,
    "commands": commands_sections,
    "exit-statuses": exit_statuses,
}
